"""Benchmark tasks, scorers and baselines."""
