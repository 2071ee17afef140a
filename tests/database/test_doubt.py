"""A doubt outlives whoever asked about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.outbox import Outbox


def leave_unsettled(outbox: Outbox, state: str) -> UUID:
    """An intent that may have had its effect, claimed by a worker that dies before it asks."""
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
def test_reaper_does_not_turn_a_doubt_into_a_new_try(outbox: Outbox, state: str) -> None:
    intent_id = leave_unsettled(outbox, state)
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert outbox.states(intent_id) == [state, state]
    outbox.make_due()
    assert [claim["last_state"] for claim in outbox.claim("worker-3")] == [state]


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_claim_that_replaces_a_dead_asker_is_told_to_ask(outbox: Outbox, state: str) -> None:
    intent_id = leave_unsettled(outbox, state)
    outbox.claim("worker-3")
    outbox.make_due()
    outbox.claim("worker-3")
    assert outbox.states(intent_id) == [state, state]
    assert outbox.pending(intent_id)["last_state"] == state


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_dead_askers_do_not_exhaust_what_may_have_had_its_effect(
    outbox: Outbox, state: str
) -> None:
    intent_id = leave_unsettled(outbox, state)
    for _ in range(4):
        outbox.call("executor", "repair_expired_leases", 10, "reaper")
        outbox.make_due()
        outbox.claim("worker-2")
        outbox.expire_claims()
    assert outbox.status(intent_id) in ("in_doubt", "confirming")


def test_no_operator_cancels_what_a_dead_asker_left_in_doubt(outbox: Outbox) -> None:
    intent_id = leave_unsettled(outbox, "IN_DOUBT")
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    [row] = outbox.call("operator", "cancel_intent", intent_id, "operator", "not wanted")
    assert row["cancel_intent"] == "in_doubt"
