"""Scorers of the benchmarks, each by its own official rules."""
