"""Gateways: the adapters that perform a submission, and that may be able to look one up.

The invariant of this package: a gateway never says "it had no effect" unless that is certain. What
is certain before the first byte left (`Retryable`), and what the gateway itself answered, is said;
everything else is `Unknown`, and the contract's guarantee decides what follows.

A gateway never imports the store, so no transaction can be open across a network call.
"""
