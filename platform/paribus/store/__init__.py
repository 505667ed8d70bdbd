"""Finished stages by key: the truth. MLflow and Optuna can be rebuilt from it."""
