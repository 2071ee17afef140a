"""Executors: they turn claims into calls, and outcomes into rows of the ledger.

The invariant of this package: a call is made only under a claim that is still trusted, at the
moment that it is made; a result is handed in only while that is still so. Nothing waits in memory:
what cannot start now is not claimed.
"""
