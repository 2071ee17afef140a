"""Which streams a holder gives up: for others of the same target that wait, and for its share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leasehold.domain.lease import Lease, StreamLease
from leasehold.executor.streams.held import HeldStreams


@pytest.fixture
def streams():
    """Streams a to e, held since the seconds 1 to 5, each with a call in flight."""
    held = HeldStreams("w")
    for since, name in enumerate("abcde", start=1):
        times = {"expires_at": None, "grace_expires_at": None}
        lease = Lease(name=f"stream/pay/{name}", holder_id="w", epoch=1, **times)
        stream = StreamLease(target="pay", stream=name, lease=lease)
        one = held.hold(stream, float(since), 30, 150)
        one.items = [SimpleNamespace(intent_no=since)]
    return held


def given_up(streams):
    return "".join(one.lease.name[-1] for one in streams.all() if one.is_surplus)


def test_as_many_turns_end_as_streams_wait_those_first_that_are_held_for_longest(streams):
    streams.end_turns("pay", 2, since=4.0)
    assert given_up(streams) == "ab"


def test_turn_that_has_not_lasted_long_enough_does_not_end(streams):
    streams.end_turns("pay", 5, since=3.0)
    assert given_up(streams) == "abc"


def test_turns_that_are_ending_already_count(streams):
    for _ in range(3):
        streams.end_turns("pay", 2, since=9.0)
    assert given_up(streams) == "ab"


def test_turns_of_other_targets_and_of_streams_without_a_call_go_on(streams):
    streams.find("stream/pay/a").items = []
    streams.end_turns("sms", 5, since=9.0)
    assert given_up(streams) == ""
    streams.end_turns("pay", 1, since=9.0)
    assert given_up(streams) == "b"


def test_surplus_that_is_being_given_up_is_not_given_up_twice(streams):
    streams.keep_at_most("pay", 3)
    assert given_up(streams) == "de"
    streams.forget(streams.find("stream/pay/d"))
    streams.keep_at_most("pay", 3)
    streams.keep_at_most("sms", 0)
    assert given_up(streams) == "e"
