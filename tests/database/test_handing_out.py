"""What a leader has marked is ready until it begins, is given back, or is not to be done."""

from __future__ import annotations

import math

import pytest

from leasehold.coordination.elector import Term
from leasehold.domain.intent import NewIntent
from leasehold.domain.lease import TrustWindow
from leasehold.executor.handing_out import HandingOut

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
    rows = outbox.database.execute(
        "SELECT unnest(intent_ids) AS one FROM leasehold.scheduled_calls"
    )
    return {row["one"].int for row in rows}


async def test_all_that_is_ready_is_marked_with_its_content(stores, outbox, term):
    rows = await window(stores, term)
    assert [row.content is None for row in rows].count(True) == 2
    handing_out = HandingOut(stores.executor, term)
    found = await handing_out.mark(rows, 5.0)
    assert found == handing_out.numbers() == await marked(outbox)
    assert (handing_out.asked_at, handing_out.ready_since, len(handing_out)) == (5.0, 5.0, 4)
    payloads = [one.payload.value() for one in handing_out.take({"bank": 9, "post": 9}, 9)]
    assert sorted(map(str, payloads)) == sorted(["0", "0", LARGE, LARGE])
    assert not handing_out


async def test_each_target_gets_as_many_as_it_has_room_for_and_the_rest_stays(stores, term):
    handing_out = HandingOut(stores.executor, term)
    await handing_out.mark(await window(stores, term, bank=4, post=4), 5.0)
    assert handing_out.take({}, 9) == []
    first = handing_out.take({"bank": 1, "post": 9}, 3)
    assert sorted(one.target for one in first) == ["bank", "post", "post"]
    await handing_out.mark(await window(stores, term, bank=0, post=0), 6.0)
    assert (handing_out.asked_at, handing_out.ready_since) == (6.0, 5.0)
    assert len(handing_out.take_all()) == 5 + 8  # all were marked once more
    assert not handing_out


async def test_what_is_not_to_be_done_any_more_is_not_ready(stores, outbox, term):
    rows = await window(stores, term)
    for row in rows[:2]:
        await stores.operator.cancel_intent(row.intent_id, "ann", "a test")
    handing_out = HandingOut(stores.executor, term)
    left = {row.intent_id.int for row in rows[2:]}
    assert await handing_out.mark(rows, 5.0) == handing_out.numbers() == left
    assert await marked(outbox) == left
