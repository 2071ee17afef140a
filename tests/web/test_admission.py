"""Full queues refuse new intents, but answer repeated ones."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.store.reader_rows import QueueDepth
from leasehold.web import admission
from leasehold.web.admission import QueueLimits
from tests.support.api import problem
from tests.support.engine import until

SMS = {"target": "sms", "payload": {}}
SMALL = SMS | {"target": "small"}


@pytest.fixture
async def small(api, outbox, monkeypatch):
    """The API with a target that may have two unfinished intents; counts only when told to."""
    monkeypatch.setattr(admission, "RECOUNT_SECONDS", 1000)
    monkeypatch.setattr(admission, "COUNT_SECONDS", 1000)
    outbox.publish("small", pending_max=2)
    await count(api, outbox)
    return api


async def count(api, outbox):
    outbox.count_depths()
    await api.service.queue_limits.step()


async def test_full_queue_refuses_until_there_is_room(small, outbox):
    outbox.enqueue(2, target="small")
    await count(small, outbox)
    response = await small.post("/v1/intents", SMALL)
    problem(response, 429, "queue_full")
    assert int(response.headers["retry-after"]) > 0
    assert (await small.post("/v1/intents", SMS)).status_code == 201
    batch = (await small.post("/v1/intents:batch", {"intents": [SMALL, SMS]})).json()["results"]
    assert [one["verdict"] for one in batch] == ["queue_full", "accepted"]
    assert batch[0]["retry_seconds"] == int(response.headers["retry-after"])
    outbox.complete(outbox.claim(targets=["small"]))
    await count(small, outbox)
    assert (await small.post("/v1/intents", SMALL)).status_code == 201


async def test_full_queue_stays_full_while_the_next_count_is_read(small, outbox):
    outbox.enqueue(2, target="small")
    await count(small, outbox)
    limits = small.service.queue_limits
    with outbox.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE leasehold.queue_depths IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(limits.step())
        await until(
            lambda: outbox.database.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND query LIKE '%%queue_depths%%' AND datname = current_database()"
            )
        )
        assert limits.is_full("small")
    await reading


async def test_intents_accepted_since_the_last_count_are_added(small):
    batch = (await small.post("/v1/intents:batch", {"intents": [SMALL] * 20})).json()["results"]
    assert Counter(one["verdict"] for one in batch) == {"accepted": 2, "queue_full": 18}
    problem(await small.post("/v1/intents", SMALL), 429, "queue_full")
    assert small.intents() == 2


async def test_concurrent_enqueues_do_not_exceed_the_limit(small):
    client = await small.client("ingest")
    found = await asyncio.gather(*[client.post("/v1/intents", json=SMALL) for _ in range(20)])
    assert Counter(one.status_code for one in found) == {201: 2, 429: 18}


async def test_repeated_request_is_answered_if_the_queue_is_full(small, outbox):
    first = await small.post("/v1/intents", SMALL | {"idempotency_key": "a"})
    await small.post("/v1/intents", SMALL | {"idempotency_key": "b"})
    await count(small, outbox)
    again = await small.post("/v1/intents", SMALL | {"idempotency_key": "a"})
    assert (again.status_code, again.content) == (200, first.content)
    other = SMALL | {"idempotency_key": "a", "payload": 1}
    problem(await small.post("/v1/intents", other), 409, "idempotency_conflict")
    problem(await small.post("/v1/intents", SMALL | {"idempotency_key": "c"}), 429, "queue_full")
    sent = [other, *[SMALL | {"idempotency_key": key} for key in "abc"], SMALL]
    batch = (await small.post("/v1/intents:batch", {"intents": sent})).json()["results"]
    assert [one["status"] for one in batch] == [409, 200, 200, 429, 429]
    assert small.intents() == 2


async def test_key_of_all_targets_is_a_conflict_even_if_the_queue_is_full(small):
    widened = {"idempotency_key": "a", "key_scope": "all"}
    await small.post("/v1/intents", SMS | widened)
    await small.post("/v1/intents:batch", {"intents": [SMALL] * 2})
    problem(await small.post("/v1/intents", SMALL | widened), 409, "idempotency_conflict")


async def test_key_known_at_another_target_does_not_pass_a_full_queue(small):
    await small.post("/v1/intents", SMS | {"idempotency_key": "a", "key_scope": "all"})
    await small.post("/v1/intents:batch", {"intents": [SMALL] * 2})
    sent = SMALL | {"idempotency_key": "a"}
    problem(await small.post("/v1/intents", sent), 429, "queue_full")
    batch = (await small.post("/v1/intents:batch", {"intents": [sent]})).json()["results"]
    assert [one["status"] for one in batch] == [429]
    assert small.intents() == 3


class Store:
    """A store with these limits and depths, on the clock of the test. Each turn counts anew."""

    def __init__(self, **limits):
        self.limits = limits
        self.depths = {}
        self.now = 0.0
        self.is_due = True  # a turn; else another instance counts
        self.seen_at = None
        self.age = 0.0
        self.turns = 0

    def clock(self):
        return self.now

    async def begin_watch_turn(self, name):
        assert name == "depths"
        return 1 if self.is_due else None

    async def record_queue_depths(self, turn_no):
        assert turn_no == 1
        if isinstance(self.depths, Exception):
            raise self.depths
        self.turns += 1
        self.seen_at, self.age = self.turns, 0.0

    async def read_queue_depths(self):
        return [
            QueueDepth(
                target=name,
                pending_max=most,
                depth=min(most, self.depths.get(name, 0)),
                seen_at=self.seen_at,
                age_seconds=self.age if self.seen_at else None,
            )
            for name, most in self.limits.items()
        ]


async def test_reservation_of_a_duplicate_is_released_and_others_count():
    store = Store(sms=2)
    limits = QueueLimits(store, store.clock)
    await limits.step()
    first, second = limits.reserve("sms"), limits.reserve("sms")
    assert limits.reserve("sms") is None
    first.settle(is_new=False)
    third = limits.reserve("sms")
    third.settle(is_new=True)
    # After a failed count, what was accepted since the previous one still counts.
    store.depths = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        await limits.step()
    assert limits.reserve("sms") is None
    # One is finished, and one is still reserved during the count.
    store.depths = {"sms": 0}
    await limits.step()
    assert limits.reserve("sms") is not None
    assert limits.reserve("sms") is None
    second.settle(is_new=True)
    assert limits.reserve("sms") is None


async def test_intents_accepted_after_another_instance_began_to_count_are_added():
    store = Store(sms=4)
    limits = QueueLimits(store, store.clock)
    await limits.step()
    for store.now in (10.0, 20.0):
        limits.reserve("sms").settle(is_new=True)
    # Another instance has counted at 15: of the two accepted here, one is in its count.
    store.now, store.is_due, store.seen_at, store.age = 30.0, False, "new", 15.0
    store.depths = {"sms": 2}
    await limits.step()
    assert limits.reserve("sms") is not None
    assert limits.reserve("sms") is None
    # The same count, read again, changes nothing.
    store.now, store.age = 40.0, 25.0
    await limits.step()
    assert limits.reserve("sms") is None


async def test_queue_whose_limit_is_gone_is_unlimited():
    store = Store(sms=1)
    limits = QueueLimits(store, store.clock)
    await limits.step()
    limits.reserve("sms")
    assert limits.is_full("sms")
    store.limits = {}
    await limits.step()
    assert not limits.is_full("sms")
    assert limits.reserve("sms") is admission.UNLIMITED


async def test_full_queue_is_looked_at_soon_but_not_for_every_request():
    store = Store(sms=1)
    limits = QueueLimits(store, store.clock)
    await limits.step()
    limits.reserve("sms")
    assert limits.reserve("sms") is None
    assert not limits.wake.is_set()
    store.now = admission.RECOUNT_SECONDS
    assert limits.reserve("sms") is None
    assert limits.wake.is_set()


async def test_times_of_accepted_intents_take_bounded_memory():
    store = Store(sms=1_000_000)
    limits = QueueLimits(store, store.clock)
    await limits.step()
    for number in range(1000):
        store.now = float(number)
        limits.reserve("sms").settle(is_new=True)
    [queue] = limits._queues.values()
    assert len(queue._marks) == admission.MARKS_MAX
