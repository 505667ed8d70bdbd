"""Runs waiting, running and finished: the queue and its workers. The only package that talks to Optuna."""
