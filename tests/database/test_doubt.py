"""An intent in doubt stays in doubt if the worker that looks it up dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.outbox import Outbox

pytestmark = pytest.mark.one_server


def leave_unsettled(outbox: Outbox, state: str) -> UUID:
    """Return an intent in doubt or submitted, claimed by a worker that dies before its lookup."""
    outbox.publish(guarantee="lookup", attempts_max=3)
    [intent_id] = outbox.enqueue()
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, state)
    outbox.make_due()
    assert [claim["last_state"] for claim in outbox.claim("worker-2")] == [state]
    outbox.expire_claims()
    return intent_id


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_reaper_does_not_resubmit_an_intent_in_doubt(outbox: Outbox, state: str) -> None:
    intent_id = leave_unsettled(outbox, state)
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert outbox.states(intent_id) == [state, state]
    outbox.make_due()
    assert [claim["last_state"] for claim in outbox.claim("worker-3")] == [state]


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_intent_in_doubt_is_still_in_doubt_for_the_next_worker(outbox: Outbox, state: str) -> None:
    intent_id = leave_unsettled(outbox, state)
    outbox.claim("worker-3")
    outbox.make_due()
    outbox.claim("worker-3")
    assert outbox.states(intent_id) == [state, state]
    assert outbox.pending(intent_id)["last_state"] == state


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_intent_in_doubt_is_not_exhausted_by_dying_workers(outbox: Outbox, state: str) -> None:
    intent_id = leave_unsettled(outbox, state)
    for _ in range(4):
        outbox.call("executor", "repair_expired_leases", 10, "reaper")
        outbox.make_due()
        outbox.claim("worker-2")
        outbox.expire_claims()
    assert outbox.status(intent_id) in ("in_doubt", "confirming")


def test_intent_in_doubt_of_a_dead_worker_cannot_be_cancelled(outbox: Outbox) -> None:
    intent_id = leave_unsettled(outbox, "IN_DOUBT")
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    [row] = outbox.call("operator", "cancel_intent", intent_id, "operator", "not wanted")
    assert row["cancel_intent"] == "in_doubt"
