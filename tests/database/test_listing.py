"""Intents are found newest first; each call looks at a bounded number of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import Status

pytestmark = pytest.mark.one_server


@pytest.fixture
def rejected(outbox):
    outbox.publish("sms")
    [intent_id] = outbox.enqueue(1, idempotency_key="k")
    outbox.complete(outbox.claim(), "FAILED", reason="no such number")
    return intent_id


@pytest.fixture
def reader(stores):
    return stores.readonly


def ids(listing):
    return [one.intent_id for one in listing.intents]


def accepted_at(intent_id):
    return datetime.fromtimestamp((intent_id.int >> 80) / 1000, tz=UTC)


async def test_search_for_rare_intents_looks_at_a_bounded_window_and_says_how_far(
    reader, outbox, rejected
):
    newer = sorted(outbox.enqueue(7))
    first = await reader.list_intents(status=Status.REJECTED, window=5)
    assert (ids(first), first.searched_to) == ([], newer[2])
    second = await reader.list_intents(status=Status.REJECTED, before=newer[2], window=5)
    assert (ids(second), second.searched_to) == ([rejected], None)


async def test_window_that_ends_at_the_last_intent_still_says_how_far_it_looked(reader, outbox):
    outbox.publish("sms")
    found = sorted(outbox.enqueue(5))
    listing = await reader.list_intents(window=5)
    assert (ids(listing), listing.searched_to) == (found[::-1], found[0])


async def test_search_for_unfinished_intents_is_bounded_too(reader, outbox):
    outbox.publish("sms")
    held = outbox.enqueue(1)
    outbox.database.owner_execute("UPDATE leasehold.outbox_pending SET due_at = 'infinity'")
    newer = sorted(outbox.enqueue(7))
    first = await reader.list_intents(status=Status.HELD, window=5)
    assert (ids(first), first.searched_to) == ([], newer[2])
    second = await reader.list_intents(status=Status.HELD, before=newer[2], window=5)
    assert (ids(second), second.searched_to) == (held, None)


@pytest.mark.parametrize("status", [None, Status.PENDING, Status.ACCEPTED])
async def test_pages_of_a_filtered_list_have_each_intent_once(reader, outbox, status):
    outbox.publish("sms")
    outbox.publish("mail")
    wanted = []
    for _ in range(6):
        wanted += outbox.enqueue(2, stream="a")
        outbox.enqueue(3, stream="b")
        outbox.enqueue(3, target="mail", stream="a")
    if status is Status.ACCEPTED:
        while claims := outbox.claim(batch_size=100, targets=("sms", "mail")):
            outbox.complete(claims)
    seen, before = [], None
    while True:
        page = await reader.list_intents(
            status=status, target="sms", stream="a", before=before, limit=5, window=7
        )
        seen += ids(page)
        before = seen[-1] if len(page.intents) == 5 else page.searched_to
        if before is None:
            break
    assert seen == sorted(wanted, reverse=True)


async def test_list_is_limited_by_time_to_the_millisecond(reader, outbox):
    outbox.publish("sms")
    older, newer = outbox.enqueue(1), []
    while not newer or accepted_at(newer[0]) == accepted_at(older[0]):
        newer = outbox.enqueue(1)
    moment = accepted_at(newer[0])
    assert newer == ids(await reader.list_intents(since=moment))[-1:]
    assert older == ids(await reader.list_intents(until=moment))[-1:]
    inside = await reader.list_intents(since=moment, until=moment + timedelta(milliseconds=1))
    assert newer[0] in ids(inside)
    assert older[0] not in ids(inside)
    assert ids(await reader.list_intents(since=moment, until=moment)) == []


async def test_time_before_or_after_all_intents_is_not_an_error(reader, outbox):
    outbox.publish("sms")
    found = outbox.enqueue(1)
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert ids(await reader.list_intents(since=first, until=last)) == found
    assert ids(await reader.list_intents(until=first)) == []
    assert ids(await reader.list_intents(since=last)) == []


async def test_time_without_a_zone_is_refused(reader):
    with pytest.raises(InvalidArgument, match=r"since \(2025-01-01 .*\) must have a time zone"):
        await reader.list_intents(since=datetime(2025, 1, 1))  # noqa: DTZ001


async def test_search_that_reaches_the_start_time_is_complete(reader, outbox):
    outbox.publish("sms")
    outbox.enqueue(20)
    later = datetime.now(UTC) + timedelta(hours=1)
    listing = await reader.list_intents(target="mail", since=later, window=5)
    assert (ids(listing), listing.searched_to) == ([], None)


async def test_reader_of_some_targets_finds_no_intents_of_others(reader, outbox):
    for target in ("sms", "mail", "post"):
        outbox.publish(target)
    found = {target: outbox.enqueue(1, target=target)[0] for target in ("sms", "mail", "post")}
    allowed = {"sms", "mail"}
    assert set(ids(await reader.list_intents(targets=allowed))) == {found["sms"], found["mail"]}
    assert ids(await reader.list_intents(targets=allowed, target="mail")) == [found["mail"]]
    assert ids(await reader.list_intents(targets=allowed, target="post")) == []
    assert ids(await reader.list_intents(targets=set())) == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"limit": 0}, "^limit is 0, but must be from 1 to 1000"),
        ({"limit": 1001}, "^limit is 1001"),
        ({"stream": ""}, "^stream is ''"),
        ({"targets": [f"t{n}" for n in range(1001)]}, "^targets has 1001 entries"),
        ({"status": "finished"}, "^status is 'finished', which is not a status"),
    ],
)
async def test_invalid_search_is_refused(reader, asked, reason):
    with pytest.raises(InvalidArgument, match=reason):
        await reader.list_intents(**asked)
