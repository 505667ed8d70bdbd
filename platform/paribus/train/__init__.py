"""The machinery of training: the only Trainer(...) in the tree, optimizers, schedules, checkpoints, curves."""
