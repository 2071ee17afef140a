"""Queues that are full: nothing more comes in, however it comes, and nobody repeats in vain."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.web import admission
from leasehold.web.admission import QueueLimits
from tests.support.api import problem

SMS = {"target": "sms", "payload": {}}
SMALL = SMS | {"target": "small"}


@pytest.fixture
async def small(api, outbox, monkeypatch):
    """The API with a target that may have two unfinished intents, and which looks when told."""
    monkeypatch.setattr(admission, "RECOUNT_SECONDS", 1000)
    monkeypatch.setattr(admission, "COUNT_SECONDS", 1000)
    outbox.publish("small", pending_max=2)
    await look(api)
    return api


async def look(api):
    api.service.queue_limits._contracts_due_at = 0
    await api.service.queue_limits.step()


async def test_queue_that_is_full_takes_nothing_more_until_it_is_not(small, outbox):
    outbox.enqueue(2, target="small")
    await look(small)
    response = await small.post("/v1/intents", SMALL)
    problem(response, 429, "queue_full")
    assert int(response.headers["retry-after"]) > 0
    assert (await small.post("/v1/intents", SMS)).status_code == 201
    batch = (await small.post("/v1/intents:batch", {"intents": [SMALL, SMS]})).json()["results"]
    assert [one["verdict"] for one in batch] == ["queue_full", "accepted"]
    assert batch[0]["retry_seconds"] == int(response.headers["retry-after"])
    outbox.complete(outbox.claim(targets=["small"]))
    await look(small)
    assert (await small.post("/v1/intents", SMALL)).status_code == 201


async def test_what_came_since_the_last_look_counts(small):
    batch = (await small.post("/v1/intents:batch", {"intents": [SMALL] * 20})).json()["results"]
    assert Counter(one["verdict"] for one in batch) == {"accepted": 2, "queue_full": 18}
    problem(await small.post("/v1/intents", SMALL), 429, "queue_full")
    assert small.intents() == 2


async def test_many_at_once_get_no_more_places_than_there_are(small):
    client = await small.client("ingest")
    found = await asyncio.gather(*[client.post("/v1/intents", json=SMALL) for _ in range(20)])
    assert Counter(one.status_code for one in found) == {201: 2, 429: 18}


async def test_repetition_is_answered_by_a_queue_that_is_full(small):
    first = await small.post("/v1/intents", SMALL | {"idempotency_key": "a"})
    await small.post("/v1/intents", SMALL | {"idempotency_key": "b"})
    await look(small)
    again = await small.post("/v1/intents", SMALL | {"idempotency_key": "a"})
    assert (again.status_code, again.content) == (200, first.content)
    other = SMALL | {"idempotency_key": "a", "payload": 1}
    problem(await small.post("/v1/intents", other), 409, "idempotency_conflict")
    problem(await small.post("/v1/intents", SMALL | {"idempotency_key": "c"}), 429, "queue_full")
    sent = [other, *[SMALL | {"idempotency_key": key} for key in "abc"], SMALL]
    batch = (await small.post("/v1/intents:batch", {"intents": sent})).json()["results"]
    assert [one["status"] for one in batch] == [409, 200, 200, 429, 429]
    assert small.intents() == 2


async def test_key_of_another_target_is_a_conflict_also_where_the_queue_is_full(small):
    await small.post("/v1/intents", SMS | {"idempotency_key": "a"})
    await small.post("/v1/intents:batch", {"intents": [SMALL] * 2})
    sent = SMALL | {"idempotency_key": "a"}
    problem(await small.post("/v1/intents", sent), 409, "idempotency_conflict")


class Store:
    """Queues of any depth."""

    def __init__(self, **limits):
        self.limits = limits
        self.depths = {}
        self.asked = []

    async def read_contracts(self):
        return [
            SimpleNamespace(target=name, pending_max=most) for name, most in self.limits.items()
        ]

    async def read_queue_depths(self, limits):
        self.asked.append(len(limits))
        if isinstance(self.depths, Exception):
            raise self.depths
        return {name: min(most, self.depths.get(name, 0)) for name, most in limits.items()}


async def test_more_limits_than_one_call_takes_are_looked_at_page_by_page():
    store = Store(**{f"t{number}": 1 for number in range(2500)})
    store.depths = {"t2400": 1}
    limits = QueueLimits(store)
    await limits.step()
    assert store.asked == [1000, 1000, 500]
    assert [name for name in store.limits if limits.is_full(name)] == ["t2400"]


async def test_place_is_given_back_by_who_brought_nothing_new_and_counted_until_the_next_look():
    store = Store(sms=2)
    limits = QueueLimits(store)
    await limits.step()
    first, second = limits.reserve("sms"), limits.reserve("sms")
    assert limits.reserve("sms") is None
    first.settle(is_new=False)
    third = limits.reserve("sms")
    third.settle(is_new=True)
    # A look that failed has seen nothing, so what came since the one before stays counted.
    store.depths = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await limits.step()
    assert limits.reserve("sms") is None
    # One is done, and one still on its way when the queue is looked at.
    store.depths = {"sms": 0}
    await limits.step()
    assert limits.reserve("sms") is not None
    assert limits.reserve("sms") is None
    second.settle(is_new=True)
    assert limits.reserve("sms") is None


async def test_full_queue_is_looked_at_again_soon_but_not_by_everybody_who_asks():
    now = 0.0
    store = Store(sms=1)
    limits = QueueLimits(store, clock=lambda: now)
    await limits.step()
    limits.reserve("sms")
    assert limits.reserve("sms") is None
    assert not limits.wake.is_set()
    now = admission.RECOUNT_SECONDS
    assert limits.reserve("sms") is None
    assert limits.wake.is_set()


def test_targets_without_a_limit_are_not_counted():
    limits = QueueLimits(Store())
    for number in range(10):
        limits.reserve(f"t{number}").settle(is_new=True)
    assert not limits._accepted
    assert not limits._reserved
