"""Streams through both clients: list blocked ones, read one, pause, resume, skip."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from leasehold.client import requests
from leasehold.domain.errors import AccessDenied, InvalidArgument, UnknownTarget
from leasehold.domain.verdict import PauseVerdict, ResumeVerdict, SkipVerdict
from tests.support.lease_holder import claim_streams

NAME = "a/b %2F é"
BOTH = pytest.mark.parametrize("clients", ["async", "sync"], indirect=True)


@pytest.fixture
def pay(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    return outbox


@BOTH
async def test_stream_is_paused_read_resumed_and_its_head_skipped(clients, pay):
    client = await clients.make("read", "operate")
    head, behind = pay.enqueue(2, "pay", stream=NAME)
    paused = await client.pause_stream("pay", NAME, "audit", seconds=3600)
    assert paused is PauseVerdict.PAUSED
    [shown] = [one async for one in client.blocked_streams()]
    assert (shown.target, shown.stream, shown.head) == ("pay", NAME, head)
    assert (shown.state, shown.reason, shown.waiting) == ("paused", "audit", 1)
    assert shown.paused_until - shown.blocked_since == timedelta(hours=1)
    seen = await client.stream("pay", NAME)
    assert (seen.state, seen.head, seen.holder_id) == ("paused", head, None)
    assert await client.resume_stream("pay", NAME, "done") is ResumeVerdict.RESUMED
    assert [one async for one in client.blocked_streams("pay")] == []
    assert await client.skip_stream_head("pay", NAME, head, "poison") is SkipVerdict.SKIPPED
    [holder] = claim_streams(pay)
    seen = await client.stream("pay", NAME)
    assert (seen.head, seen.holder_id, seen.lease_epoch) == (behind, holder.name, holder.epoch)
    assert pay.ledger(head)[-1]["holder"] == shown.paused_by


@BOTH
async def test_reasons_of_a_pause_are_read_and_resumed_by_name(clients, pay):
    client = await clients.make("read", "operate")
    failed, _ = pay.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(pay)
    holder.begin([failed])
    await client.pause_stream("pay", "s", "audit", seconds=3600)
    holder.record_next([failed], "FAILED", reason="rejected")
    [listed] = [one async for one in client.blocked_streams()]
    seen = await client.stream("pay", "s")
    assert listed.pauses == seen.pauses
    failure, person = seen.pauses
    assert (failure.paused_for, failure.paused_until, failure.note) == (failed, None, "rejected")
    assert person.paused_until - person.paused_since == timedelta(hours=1)
    resume = client.resume_stream
    found = await resume("pay", "s", "x", paused_by=person.paused_by)
    assert found is ResumeVerdict.STILL_PAUSED
    assert await resume("pay", "s", "x") is ResumeVerdict.NOT_PAUSED
    assert await resume("pay", "s", "x", paused_for=failed) is ResumeVerdict.RESUMED
    assert (await client.stream("pay", "s")).pauses == []


@BOTH
async def test_verdict_that_nothing_was_done_is_a_result(clients, pay):
    client = await clients.make("read", "operate")
    head, behind = pay.enqueue(2, "pay", stream="s")
    assert await client.stream("pay", "nosuch") is None
    assert await client.pause_stream("pay", "nosuch", "x") is PauseVerdict.NOT_FOUND
    assert await client.resume_stream("pay", "s", "x") is ResumeVerdict.NOT_PAUSED
    skip = client.skip_stream_head
    assert await skip("pay", "s", behind, "x") is SkipVerdict.NOT_HEAD
    assert await skip("pay", "s", uuid4(), "x") is SkipVerdict.NOT_FOUND
    [holder] = claim_streams(pay)
    holder.begin([head])
    assert await skip("pay", "s", head, "x") is SkipVerdict.IN_FLIGHT
    with pytest.raises(InvalidArgument, match="note"):
        await client.pause_stream("pay", "s", "")


@BOTH
async def test_blocked_streams_of_several_pages_are_all_found(clients, pay, monkeypatch):
    monkeypatch.setattr("leasehold.client.stream_requests.PAGE_MAX", 2)
    names = [f"s{n}" for n in range(5)]
    for name in names:
        pay.enqueue(target="pay", stream=name)
        pay.call("operator", "pause_stream", "pay", name, "ada", "wait")
    client = await clients.make("read")
    assert [one.stream async for one in client.blocked_streams()] == names


@BOTH
async def test_list_of_a_misspelt_target_raises(clients, pay):
    del pay
    client = await clients.make("read")
    with pytest.raises(UnknownTarget, match="'nosuch'"):
        [one async for one in client.blocked_streams("nosuch")]
    with pytest.raises(UnknownTarget, match="'nosuch'"):
        await client.page(target="nosuch")


@BOTH
async def test_token_without_the_scope_or_the_target_is_denied(clients, pay):
    pay.enqueue(target="pay", stream="s")
    client = await clients.make("read")
    with pytest.raises(AccessDenied, match="operate"):
        await client.pause_stream("pay", "s", "x")
    client = await clients.make("read", targets=["sms"])
    with pytest.raises(AccessDenied, match="target"):
        await client.stream("pay", "s")


def test_operation_is_not_repeated_after_a_lost_response():
    call = requests.operation("/v1/stream/pause", "stream", {}, requests.reader(lambda _: None))
    assert not call.is_idempotent
    assert "Look at the stream" in call.advice
