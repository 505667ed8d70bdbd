"""paribus (ceteris paribus, all else equal): ablations of Transformer-encoder pretraining."""

__version__ = "0.1.0"
