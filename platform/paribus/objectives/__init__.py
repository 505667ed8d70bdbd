"""Pretraining objectives: one LightningModule each, what they are fed, and the pretrain stage."""
