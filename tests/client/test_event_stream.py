"""Server-sent events: parsing, and the cursor to resume from."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from leasehold.client.event_stream import BLOCK_BYTES_MAX, Block, EventStream, Parser
from leasehold.domain.errors import ApiError
from leasehold.domain.intent import AttemptState

INTENT = UUID("0190a7e4-0000-7000-8000-000000000001")
ATTEMPT = {
    "target": "sms",
    "intent_id": str(INTENT),
    "attempt_no": 1,
    "state": "DISPATCHED",
    "holder": "worker-1",
    "started_at": "2026-11-15T10:00:00.123456Z",
    "finished_at": "2026-11-15T10:00:01Z",
    "a member of tomorrow": 1,
}
STREAM = (
    "retry: 1000\nid: a\n\n: still here\nid: b\n\n"
    'id: c\nevent: attempt\ndata: {"x":\ndata: "\u2028"}\n\n'
)
BLOCKS = [Block("a", None), Block("b", None), Block("c", '{"x":\n"\u2028"}')]


def blocks(parser, *pieces):
    return [block for piece in pieces for block in parser.feed(piece)]


def event(number):
    return f"id: 7-{INTENT}-{number}\ndata: {json.dumps(ATTEMPT)}\n\n".encode()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_blocks_are_the_same_however_the_bytes_are_cut(end, size):
    sent = STREAM.replace("\n", end).encode()
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    parser = Parser()
    assert blocks(parser, *pieces) == BLOCKS
    assert parser.retry_seconds == 1.0


def test_incomplete_block_is_not_delivered():
    assert blocks(Parser(), b"id: a\ndata: 1\n") == []


def test_empty_lines_and_unknown_fields_are_ignored():
    assert blocks(Parser(), b"\n\n\nwhat: x\n\nretry: soon\n\n") == []


def test_endless_block_is_rejected_before_it_fills_the_memory():
    parser = Parser()
    with pytest.raises(ApiError, match="bytes"):
        blocks(parser, *[b"data: " + b"x" * 60_000 + b"\n"] * (BLOCK_BYTES_MAX // 60_000 + 1))
    with pytest.raises(ApiError, match="bytes"):
        blocks(Parser(), b"x" * (BLOCK_BYTES_MAX + 1))


def test_event_is_a_ledger_row_with_its_cursor():
    [found] = EventStream(None, None, 30).events(event(1))
    assert (found.target, found.attempt.state) == ("sms", AttemptState.DISPATCHED)
    assert (found.attempt.intent_id, found.cursor) == (INTENT, f"7-{INTENT}-1")
    assert found.attempt.finished_at.isoformat() == "2026-11-15T10:00:01+00:00"
    assert found.attempt.code is None


def test_stream_resumes_after_the_last_event_that_was_processed():
    stream = EventStream(None, None, 30)
    assert "Last-Event-ID" not in stream.request().headers
    events = stream.events(event(1) + event(2))
    next(events)
    next(events)
    assert stream.request().headers["Last-Event-ID"] == f"7-{INTENT}-1"
    stream = EventStream(None, None, 30)
    assert len(list(stream.events(event(1) + event(2) + b"id: half"))) == 2
    assert stream.request().headers["Last-Event-ID"] == f"7-{INTENT}-2"
    # The incomplete block is not continued by the next connection.
    assert len(list(stream.events(event(3)))) == 1


def test_cursor_advances_without_an_event():
    stream = EventStream(None, None, 30)
    assert list(stream.events(f"id: 9-{INTENT}-1\n\n".encode())) == []
    assert stream.request().headers["Last-Event-ID"] == f"9-{INTENT}-1"


def test_stream_that_ends_repeatedly_is_an_error():
    stream = EventStream(None, None, 0)
    with pytest.raises(ApiError, match="repeatedly"):
        stream.pause()


@pytest.mark.parametrize(
    "sent",
    [event(1).replace(b"id: ", b"other: "), b"id: 1\ndata: not json\n\n"],
)
def test_unreadable_event_is_an_error(sent):
    with pytest.raises(ApiError, match="cannot read"):
        list(EventStream(None, None, 30).events(sent))
