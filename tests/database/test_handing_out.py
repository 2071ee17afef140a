"""What a leader has marked is ready until it begins, is given back, or is not to be done."""

from __future__ import annotations

import asyncio
import math

import pytest

from leasehold.coordination.term import Term
from leasehold.domain.errors import LeaseLost
from leasehold.domain.intent import NewIntent
from leasehold.domain.lease import TrustWindow
from leasehold.executor.leader.dispatcher import Dispatcher

pytestmark = pytest.mark.one_server

LARGE = "".join(map(str, range(500)))  # too much to come with the window


@pytest.fixture
async def term(stores):
    for target in ("bank", "post"):
        terms = {"scope": "cluster", "guarantee": "keyed", "lease_name": "leader"}
        await stores.operator.publish_contract(target, terms, "ann")
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    return Term(lease, TrustWindow(math.inf))


async def window(stores, term, *, bank=2, post=2):
    """Some of either target, every second one too large for its content to come along."""
    for target, count in (("bank", bank), ("post", post)):
        for number in range(count):
            payload = LARGE if number % 2 else number
            await stores.ingest.enqueue_intent(NewIntent(target=target, payload=payload))
    return await stores.executor.refresh_due_window("a", [term.lease], ["bank", "post"], 100, 1000)


async def marked(outbox):
    rows = outbox.database.execute("SELECT unnest(intent_ids) AS one FROM leasehold.call_marks")
    return {row["one"].int for row in rows}


def handing_out_of(stores, term, told=lambda: None):
    return Dispatcher(stores.executor, term, told)


async def mark(handing_out, rows, asked_at):
    handing_out.mark(rows, asked_at)
    return await handing_out.marked()


async def test_all_that_is_ready_is_marked_with_its_content(stores, outbox, term):
    rows = await window(stores, term)
    assert [row.has_content for row in rows].count(False) == 2
    handing_out = handing_out_of(stores, term)
    assert await mark(handing_out, rows, 5.0) == set()
    assert handing_out.numbers() == {row.intent_id.int for row in rows} == await marked(outbox)
    assert (len(handing_out), handing_out.by_target()) == (4, {"bank": 2, "post": 2})
    asked_at, calls = handing_out.take({"bank": 9, "post": 9}, 9)
    payloads = [one.payload.value() for one in calls]
    assert (asked_at, sorted(map(str, payloads))) == (5.0, sorted(["0", "0", LARGE, LARGE]))
    assert not handing_out


async def test_each_target_gets_as_many_as_it_has_room_for_and_the_rest_stays(stores, term):
    handing_out = handing_out_of(stores, term)
    await mark(handing_out, await window(stores, term, bank=4, post=4), 5.0)
    assert handing_out.take({}, 9) is None
    first = handing_out.take({"bank": 1, "post": 9}, 3)
    assert sorted(one.target for one in first.calls) == ["bank", "post", "post"]
    await mark(handing_out, await window(stores, term, bank=0, post=0), 6.0)
    assert handing_out.has_waited_since(5.5)
    assert not handing_out.has_waited_since(5.0)
    assert len(handing_out.take_all()) == 5 + 8  # all were marked once more
    assert not handing_out


async def test_what_was_marked_first_begins_first_unless_its_target_has_no_room(stores, term):
    handing_out = handing_out_of(stores, term)
    rows = await window(stores, term)
    bank, post = ([row for row in rows if row.target == target] for target in ("bank", "post"))
    await mark(handing_out, bank, 5.0)
    await mark(handing_out, post, 6.0)
    assert handing_out.take({"post": 1}, 9).asked_at == 6.0
    assert handing_out.take({"bank": 9, "post": 9}, 1).asked_at == 5.0
    assert [handing_out.take({"bank": 9, "post": 9}, 9).asked_at for _ in range(2)] == [5.0, 6.0]
    assert handing_out.take({"bank": 9, "post": 9}, 9) is None


async def test_what_is_not_to_be_done_any_more_is_not_ready(stores, outbox, term):
    rows = await window(stores, term)
    for row in rows[:2]:
        await stores.operator.cancel_intent(row.intent_id, "ann", "a test")
    handing_out = handing_out_of(stores, term)
    cancelled, left = ({row.intent_id.int for row in part} for part in (rows[:2], rows[2:]))
    assert await mark(handing_out, rows, 5.0) == cancelled
    assert await marked(outbox) == handing_out.numbers() == left


async def test_calls_are_marked_beside_the_work_and_count_as_taken_meanwhile(stores, term):
    told = asyncio.Event()
    handing_out = handing_out_of(stores, term, told.set)
    rows = await window(stores, term)
    handing_out.mark(rows, 5.0)
    assert (handing_out.is_marking, handing_out.is_marked, len(handing_out)) == (True, False, 0)
    assert handing_out.numbers() == {row.intent_id.int for row in rows}
    assert handing_out.by_target() == {"bank": 2, "post": 2}
    async with asyncio.timeout(10):
        await told.wait()
    assert handing_out.is_marked
    await handing_out.marked()
    assert (handing_out.is_marking, len(handing_out)) == (False, 4)


async def test_mark_that_fails_is_told_to_who_asks_for_it(stores, outbox, term):
    handing_out = handing_out_of(stores, term)
    rows = await window(stores, term)
    outbox.expire_lease("leader")
    handing_out.mark(rows, 5.0)
    with pytest.raises(LeaseLost):
        await handing_out.marked()
    assert (handing_out.is_marking, handing_out.numbers()) == (False, set())
