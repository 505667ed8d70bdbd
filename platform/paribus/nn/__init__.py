"""Modules: torch only, no Lightning, no files. Read encoder.py first."""
