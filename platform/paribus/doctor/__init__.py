"""Whether this machine can be trusted with runs: checks.py looks, resume.py proves that killed runs resume exactly."""
