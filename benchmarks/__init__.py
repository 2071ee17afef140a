"""Benchmarks: each prints a table and writes rows of one shape, beside something comparable."""
