"""Benchmarks of paribus itself. They print what they measure and judge nothing."""
