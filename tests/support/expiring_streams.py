"""The two expiries of a stream's lease, which come when a test says so.

Whoever looks for expired leases takes all of them at once. So when it has taken that of a ghost, a
dead holder whose second expiry has passed, it has also seen the others, and left them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.engine import until
from tests.support.lease_holder import claim_streams

if TYPE_CHECKING:
    from psycopg.rows import DictRow

    from tests.support.engine import Engine

# A holder that was suspended for 40 seconds is between the two, and its calls may go on.
TWO_PHASES = {"stream_claim_seconds": "20", "stream_grace_seconds": "600"}

_GHOST = "ghost"
_TAKES_NO_TIME = {"kind": "python", "function": "tests.support.python_gateways:count"}


def lease_of(engine: Engine, stream: str = "s0") -> DictRow:
    [lease] = engine.database.execute("SELECT * FROM leasehold.leases WHERE stream = %s", [stream])
    return lease


def add_ghost(engine: Engine) -> None:
    """Let a ghost hold a stream; call this before a worker starts."""
    engine.publish("ghosts", scope="stream", gateway=_TAKES_NO_TIME)
    engine.outbox.enqueue(1, "ghosts", stream=_GHOST)
    [held] = claim_streams(engine.outbox, _GHOST, ["ghosts"], grace_seconds=600)
    assert held.stream == _GHOST


async def first_expiry_takes_nothing(engine: Engine, holder_id: str, other_id: str) -> None:
    """Let the lease of s0 expire for the first time. The other worker leaves it alone."""
    engine.expire_held(holder_id, grace=False)
    engine.expire_held(_GHOST)
    await until(lambda: lease_of(engine, _GHOST)["holder_id"] == other_id)
    lease = lease_of(engine)
    assert (lease["holder_id"], lease["lease_epoch"]) == (holder_id, 1)
