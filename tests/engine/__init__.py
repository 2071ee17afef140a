"""The engine as it runs: real processes and signals, a real database, a real gateway."""
