"""Response bodies of the routes about streams."""

from __future__ import annotations

from typing import Literal, TypeAlias

from leasehold.store import reader_rows
from leasehold.web.schemas.responses import ResponseBody, of_row

_Blocked: TypeAlias = Literal["paused", "held", "in_doubt", "confirming", "deferred", "retrying"]


class StreamIntervened(ResponseBody):
    """An operation on a stream that was done, and the operator."""

    target: str
    stream: str
    verdict: str
    operator: str


@of_row(reader_rows.StreamPause)
class StreamPause(ResponseBody):
    """A reason for which a stream stands still: a person (or token) paused it, or an intent failed.

    `paused_by` is `on_failure` for a failed intent, which is `paused_for`. `paused_until` is null
    if it ends only by a resume that names it.
    """


@of_row(reader_rows.BlockedStream)
class BlockedStream(ResponseBody):
    """A stream that is paused, or whose head was tried and has not ended.

    `head` is null if nothing waits. `pauses` are the reasons for which the stream is paused, the
    first 20: failed intents, then people. It goes on when the last one has ended. `paused_by`,
    `paused_for` and `reason` are those of the first. A failed intent is finished, and `head` is the
    next one. `paused_until` is the latest end, null if it is not paused, or until somebody resumes
    it. `waiting` counts the intents behind the head that
    were not submitted, up to 1,000; `submitted` those of a pipeline that await their confirmation.
    """

    state: _Blocked
    pauses: list[StreamPause]


class BlockedStreams(ResponseBody):
    """Blocked streams by target and name; `next` is the `after` of the next page."""

    streams: list[BlockedStream]
    next: str | None


@of_row(reader_rows.StreamSeen)
class Stream(ResponseBody):
    """A stream, blocked or not, with the members of a blocked stream and its holder, if any.

    If it is not blocked, its state is `in_flight`, `waiting` (the head was not tried yet),
    `confirming` (only submitted intents are left) or `empty`, and `blocked_since` is null.
    `in_flight_since` is when a call began that has not ended. If the holder has died, others take
    the stream after `grace_expires_at` while a call is in flight, else after `lease_expires_at`.
    """

    state: Literal[_Blocked, "in_flight", "waiting", "empty"]
    pauses: list[StreamPause]
