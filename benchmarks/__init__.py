"""Benchmarks. Each prints a table and writes JSON rows, with ratios to something comparable."""
