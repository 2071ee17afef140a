"""The executor and the database agree about the next step of an intent in doubt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.intent import AttemptState, NewIntent, Status
from leasehold.domain.outcome import NotFound, Result, Retryable, Unknown
from leasehold.domain.retry import Hold, LookUp, Submit, after_calling, after_lookup, next_step
from leasehold.gateway.python.terms import PythonTerms

pytestmark = pytest.mark.one_server

WINDOW, QUARANTINE = 3600, 90


@pytest.fixture
def life(stores, database, outbox):
    """One keyed intent whose gateway forgets keys after an hour."""
    return Life(stores, database, outbox)


class Life:
    def __init__(self, stores, database, outbox):
        self.stores = stores
        self.database = database
        self.outbox = outbox
        self.contract = None
        self.intent_id = None

    async def begin(self, lookup):
        self.contract = Contract(
            target="sms",
            scope="item",
            guarantee="keyed",
            gateway=PythonTerms(function="a:b", lookup=lookup),
            key_window_seconds=WINDOW,
            quarantine_seconds=QUARANTINE,
        )
        await self.stores.operator.publish_contract("sms", self.contract.terms(), "ada")
        self.intent_id = await self.stores.ingest.enqueue_intent(NewIntent(target="sms", payload=1))

    async def claim(self):
        self.outbox.make_due()
        [claimed] = await self.stores.executor.claim_outbox_batch(1, "w", 30, ["sms"])
        return claimed

    async def record(self, claimed, outcome):
        result = Result(
            intent_id=claimed.intent_id, lease_token=claimed.lease_token, outcome=outcome
        )
        [recorded] = await self.stores.executor.complete_outbox_attempts("w", [result])
        return recorded

    async def doubt(self):
        await self.record(await self.claim(), Unknown(retry_after_seconds=0))

    def pass_time(self, seconds):
        """Move the first try back by this many seconds."""
        self.database.owner_execute(
            "UPDATE leasehold.outbox_pending"
            "   SET first_tried_at = first_tried_at - make_interval(secs => %s)",
            [seconds],
        )


async def test_doubt_within_the_key_window_is_looked_up_only_after_the_quarantine(
    life,
):
    await life.begin(lookup="a:c")
    await life.doubt()
    life.pass_time(WINDOW)
    claimed = await life.claim()
    step = next_step(claimed, life.contract)
    assert isinstance(step, Hold)
    recorded = await life.record(claimed, step.outcome)
    assert recorded.due_at - claimed.claimed_at >= timedelta(seconds=QUARANTINE)

    life.pass_time(QUARANTINE)
    claimed = await life.claim()
    assert next_step(claimed, life.contract) == LookUp()
    await life.record(claimed, after_lookup(NotFound(), claimed, life.contract))
    assert next_step(await life.claim(), life.contract) == Submit()


async def test_doubt_past_the_key_window_is_held_if_the_gateway_has_no_lookup(life):
    await life.begin(lookup=None)
    await life.doubt()
    life.pass_time(WINDOW - 10)
    claimed = await life.claim()
    step = next_step(claimed, life.contract)
    assert isinstance(step, Hold)
    recorded = await life.record(claimed, step.outcome)
    assert not recorded.is_held, "the window is open for ten more seconds"

    life.pass_time(10)
    claimed = await life.claim()
    recorded = await life.record(claimed, next_step(claimed, life.contract).outcome)
    assert recorded.is_held


async def test_saturated_gateway_does_not_exhaust_an_intent_in_doubt(life):
    await life.begin(lookup=None)
    await life.doubt()
    recorded = None
    for _ in range(19):
        claimed = await life.claim()
        assert next_step(claimed, life.contract) == Submit()
        busy = Retryable(retry_after_seconds=0, reason="busy")
        recorded = await life.record(claimed, after_calling(busy, claimed, life.contract))
    assert (recorded.state, recorded.is_held) == (AttemptState.IN_DOUBT, True)
    [status] = await life.stores.readonly.read_status([life.intent_id])
    assert status.status is Status.HELD
