"""Executors turn due intents into calls, and outcomes into rows of the ledger.

There are two ways to get work, and one way to do it:

    competing.py (scope item)     claims due items ──┐
                                                     ├──► runner.py ──► completer.py ──► ledger
    leader/ (scope cluster)       marks due items ───┘    calls         records in batches

What holds in this package: a call is made only under a lease that is trusted at that moment, and a
result is written only while the lease is still trusted. What cannot start now is not claimed or
marked.
"""
