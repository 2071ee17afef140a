"""Lets the machine of this process have been suspended, as its clock of trust shows it.

That clock counts the time of a suspension, the monotonic clock does not.
"""

from __future__ import annotations

from functools import partial

from leasehold.domain.lease import trust_clock


def suspend(seconds: float) -> None:
    """Move the clock of trust forward. Everybody has the same object, so it changes in place."""
    assert isinstance(trust_clock, partial)
    read = partial(trust_clock.func, *trust_clock.args)
    trust_clock.__setstate__((lambda: read() + seconds, (), {}, {}))
