"""Gateways: the adapters that submit an intent to the outside, and that may look a submission up.

The rule of this package: a gateway reports "no effect" only if that is certain. It is certain
before the first byte is sent, and when the remote side says so. Everything else is `Unknown`, and
the contract's guarantee decides what follows.

A gateway never imports the store, so no transaction is open across a network call.
"""

# The kinds of gateways, each of which registers itself. A new kind is its package and a line here.
from leasehold.gateway import http, ledger, python

__all__ = ["http", "ledger", "python"]
