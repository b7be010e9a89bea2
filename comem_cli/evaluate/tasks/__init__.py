"""Benchmark tasks: from a spec such as `niah_multikey_1:4096` to a cell of examples."""
