"""The sandbox: a small HTTP gateway of our own that behaves as each class, badly where asked to.

It is what demos, tests and benchmarks submit to. Its invariant: the record is exact. An effect is
counted in the same step that appends its entry, with nothing awaited in between, so whatever the
record says happened, happened, once per entry, and in that order.
"""

from leasehold.sandbox.dial import Dial
from leasehold.sandbox.server import Sandbox

__all__ = ["Dial", "Sandbox"]
