"""To and from the folders of `transformers`: config.py (spec to config), names.py (weights), hf.py (whole folders)."""
