"""Benchmarks: each is a ratio of two measurements of one run, so that machines can be compared."""
