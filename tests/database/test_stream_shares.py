"""An instance hands streams over only if it has more than its share and another one is hungry, and
ends the turns of as many streams as wait for a slot.
"""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server


def report(outbox, name, targets, held, wanted, alive_seconds=60):
    arguments = (name, "worker", list(targets), {"x": 1}, alive_seconds, held, wanted)
    outbox.call("executor", "renew_instance", *arguments)


def kept(outbox, name):
    rows = outbox.call("executor", "surplus_streams", name)
    return {row["target"]: row["kept"] for row in rows}


def waiting(outbox, *targets, streams_max=100):
    rows = outbox.call("executor", "waiting_streams", list(targets), streams_max)
    return {row["target"]: row["waiting"] for row in rows}


def test_instance_with_more_than_its_share_hands_over_to_a_hungry_one(outbox):
    report(outbox, "full", ["pay", "sms"], [90, 10], [0, 0])
    assert kept(outbox, "full") == {}
    report(outbox, "hungry", ["pay", "sms"], [0, 10], [50, 0])
    assert kept(outbox, "full") == {"pay": 45}
    assert kept(outbox, "hungry") == {}


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        (10, 0, {}),  # nobody is hungry
        (10, 2, {"pay": 8}),  # not more than is wanted
        (0, 9, {"pay": 5}),  # not below the own share
        (9, 9, {}),  # 9 of 19 streams: the share is rounded up
    ],
)
def test_surplus_is_bounded_by_the_share_and_by_what_others_want(outbox, held, wanted, expected):
    report(outbox, "full", ["pay"], [10], [0])
    report(outbox, "other", ["pay"], [held], [wanted])
    if held == 10 and wanted:
        report(outbox, "third", ["pay"], [0], [0])
    assert kept(outbox, "full") == expected


def test_dead_hungry_or_foreign_instance_gets_nothing(outbox, database):
    report(outbox, "full", ["pay"], [10], [0])
    report(outbox, "dead", ["pay"], [0], [10])
    report(outbox, "foreign", ["sms"], [0], [10])
    database.owner_execute(
        "UPDATE leasehold.instances SET alive_until = clock_timestamp() WHERE instance_id = 'dead'"
    )
    assert kept(outbox, "full") == {}
    # Its own hunger for another target is no reason either.
    report(outbox, "full", ["pay", "sms"], [10, 0], [5, 5])
    assert kept(outbox, "full") == {}


def test_instance_that_reports_no_streams_has_none_and_wants_none(outbox):
    outbox.call("executor", "renew_instance", "old", "worker", ["pay"], {"x": 1}, 60)
    report(outbox, "full", ["pay"], [10], [0])
    assert kept(outbox, "full") == kept(outbox, "old") == kept(outbox, "unknown") == {}


@pytest.mark.parametrize(
    ("held", "wanted"), [([1, 2], [0]), ([1], [0, 0]), ([-1], [0]), ([1], [-1]), ([None], [0])]
)
def test_report_with_wrong_numbers_is_refused(outbox, held, wanted):
    with refused("22023"):
        report(outbox, "full", ["pay"], held, wanted)


def test_streams_wait_whose_head_could_be_claimed(outbox, database):
    outbox.publish("pay", scope="stream")
    outbox.publish("sms", scope="stream")
    [later] = outbox.enqueue(1, "pay", stream="later")
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = now() + interval '1 minute'"
        f" WHERE intent_id = '{later}'"
    )
    for stream in "abcdef":
        outbox.enqueue(2, "pay", stream=stream)
    assert waiting(outbox, "pay", "sms") == {"pay": 6}
    assert waiting(outbox, "pay", streams_max=4) == {"pay": 4}
    assert waiting(outbox, "sms") == {}
    [holder] = claim_streams(outbox, streams_max=1)
    assert waiting(outbox, "pay") == {"pay": 5}
    outbox.call("operator", "pause_stream", "pay", "f", "ada", "look first")
    assert waiting(outbox, "pay") == {"pay": 4}
    assert holder.release()
    assert waiting(outbox, "pay") == {"pay": 5}


def test_stream_of_a_dead_holder_waits_when_its_time_is_over(outbox):
    outbox.publish("pay", scope="stream")
    heads = [outbox.enqueue(2, "pay", stream=stream)[0] for stream in "ab"]
    busy, idle = claim_streams(outbox)
    assert busy.begin(heads[:1]) == ["begun"]
    assert waiting(outbox, "pay") == {}
    for holder in busy, idle:
        outbox.expire_lease(holder.lease_name, grace=False)
    assert waiting(outbox, "pay") == {"pay": 1}
    outbox.expire_lease(busy.lease_name)
    assert waiting(outbox, "pay") == {"pay": 2}
