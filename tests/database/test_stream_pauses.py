"""A stream stands still while a reason for it stands: pauses of people, and failed intents."""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

BLOCK_SECONDS = 6000
PAUSE_SECONDS = 600
STEPS = (
    "ada pauses",
    "bob pauses for a time",
    "the call fails",
    "the time of bob passes",
    "ada resumes hers",
    "ada resumes after the failure",
)
ORDERS = 60


class Scene:
    """A stream with a call in flight, three rows behind it, and who stands in its way."""

    def __init__(self, outbox, stream="s", on_failure="block"):
        self.outbox, self.database, self.stream = outbox, outbox.database, stream
        self.blocks = None if on_failure == "block" else BLOCK_SECONDS
        self.ids = outbox.enqueue(4, "pay", stream=stream)
        [self.holder] = [one for one in claim_streams(outbox) if one.stream == stream]
        assert self.holder.begin(self.ids[:1]) == ["begun"]
        self.now = 0
        self.standing: dict[str, float] = {}

    def pause(self, operator, seconds=None):
        arguments = ("pay", self.stream, operator, "wait", seconds)
        [row] = self.outbox.call("operator", "pause_stream", *arguments)
        assert row["pause_stream"] == "paused"
        self.standing[operator] = float("inf") if seconds is None else self.now + seconds

    def resume(self, operator="ada", paused_by=None, paused_for=None):
        arguments = ("pay", self.stream, operator, "settled", paused_by, paused_for)
        [row] = self.outbox.call("operator", "resume_stream", *arguments)
        name = str(paused_for) if paused_for else paused_by or operator
        if name not in self.standing:
            assert row["resume_stream"] == "not_paused"
        else:
            del self.standing[name]
            verdict = "still_paused" if self.standing else "resumed"
            assert row["resume_stream"] == verdict
        return row["resume_stream"]

    def fail(self):
        self.holder.record_next(self.ids[:1], "FAILED", reason="rejected")
        self.standing[str(self.ids[0])] = float("inf") if self.blocks is None else self.blocks

    def let_pass(self, seconds):
        """Let time pass for pauses and for rows that they have moved."""
        self.now += seconds
        self.standing = {name: end for name, end in self.standing.items() if end > self.now}
        self.database.owner_execute(
            "UPDATE leasehold.outbox_pending SET due_at = due_at - make_interval(secs => %s)"
            " WHERE due_at > clock_timestamp() AND stream = %s",
            [seconds, self.stream],
        )
        for table in ("leases", "stream_pauses"):
            self.database.owner_execute(
                f"UPDATE leasehold.{table} SET"
                " paused_since = paused_since - make_interval(secs => %s),"
                " paused_until = paused_until - make_interval(secs => %s)"
                " WHERE lease_name = leasehold.stream_lease_name('pay', %s)",
                [seconds, seconds, self.stream],
            )

    def reasons(self):
        [row] = self.outbox.call("readonly", "read_stream", "pay", self.stream)
        return {one["paused_for"] or one["paused_by"] for one in row["pauses"]}

    def claimed(self):
        """Claim the stream; return its heads, None if it could not be claimed."""
        found = [one for one in claim_streams(self.outbox, "next") if one.stream == self.stream]
        return [row["intent_id"] for row in found[0].heads if row["intent_id"]] if found else None

    def do(self, step):
        {
            "ada pauses": lambda: self.pause("ada"),
            "bob pauses for a time": lambda: self.pause("bob", PAUSE_SECONDS),
            "the call fails": self.fail,
            "the time of bob passes": lambda: self.let_pass(PAUSE_SECONDS + 1),
            "ada resumes hers": self.resume,
            "ada resumes after the failure": lambda: self.resume(paused_for=self.ids[0]),
        }[step]()


@pytest.fixture
def pay(outbox, request):
    on_failure = getattr(request, "param", "block")
    seconds = {} if on_failure == "block" else {"block_seconds": BLOCK_SECONDS}
    outbox.publish("pay", scope="stream", on_failure=on_failure, **seconds)
    outbox.on_failure = on_failure
    return outbox


@pytest.mark.parametrize("pay", ["block", "block_for"], indirect=True)
def test_stream_goes_on_when_its_last_reason_has_ended_in_any_order(pay, request):
    seed = random.randrange(10**6)
    request.node.user_properties.append(("seed", seed))
    orders = random.Random(seed).sample(list(itertools.permutations(STEPS)), ORDERS)
    for number, order in enumerate(orders):
        scene = Scene(pay, f"s{number}", pay.on_failure)
        for step in order:
            scene.do(step)
            assert scene.reasons() == set(scene.standing), (seed, order, step)
        assert scene.claimed() == (None if scene.standing else scene.ids[1:2]), (seed, order)
        for operator in ("ada", "bob"):
            scene.resume(operator)
        scene.resume(paused_for=scene.ids[0])
        assert scene.reasons() == set()


def test_pause_for_a_time_does_not_end_a_block(pay):
    scene = Scene(pay)
    scene.fail()
    scene.pause("ada", PAUSE_SECONDS)
    scene.let_pass(PAUSE_SECONDS + 1)
    assert scene.claimed() is None
    assert scene.reasons() == {str(scene.ids[0])}
    assert scene.resume(paused_for=scene.ids[0]) == "resumed"
    assert scene.claimed() == scene.ids[1:2]


def test_failure_under_a_pause_blocks_the_stream_after_the_pause_was_resumed(pay):
    scene = Scene(pay)
    scene.pause("ada")
    scene.fail()
    assert scene.resume() == "still_paused"
    assert scene.claimed() is None
    [row] = pay.call("readonly", "read_blocked_streams", 10)
    assert (row["paused_by"], row["paused_for"]) == ("on_failure", scene.ids[0])
    assert (row["reason"], row["head"], row["state"]) == ("rejected", scene.ids[1], "paused")
    assert scene.resume(paused_for=scene.ids[0]) == "resumed"
    assert scene.claimed() == scene.ids[1:2]


def test_short_pause_of_one_person_does_not_end_the_pause_of_another(pay):
    scene = Scene(pay)
    scene.pause("ada")
    scene.pause("bob", PAUSE_SECONDS)
    assert scene.resume("carol") == "not_paused"
    assert scene.resume("bob") == "still_paused"
    assert scene.resume("bob") == "not_paused"
    assert scene.resume("bob", paused_by="ada") == "resumed"


def test_new_pause_of_a_person_takes_the_place_of_the_old_one(pay):
    scene = Scene(pay)
    scene.holder.release(scene.ids[:1])
    scene.pause("ada", 10 * PAUSE_SECONDS)
    scene.pause("ada", PAUSE_SECONDS)
    scene.let_pass(PAUSE_SECONDS + 1)
    assert scene.claimed() == scene.ids[:1]


def test_stream_that_is_resumed_early_does_not_wait_for_the_pause_that_ended(pay):
    """The head was moved to the end of a pause, then to that of a longer one."""
    scene = Scene(pay)
    scene.holder.release(scene.ids[:1])
    scene.pause("ada", PAUSE_SECONDS)
    scene.pause("bob", 10 * PAUSE_SECONDS)
    scene.resume("bob")
    assert scene.claimed() is None
    scene.resume("ada")
    assert scene.claimed() == scene.ids[:1]


def test_skipped_heads_end_no_reason(pay):
    scene = Scene(pay)
    scene.fail()
    scene.pause("ada")
    for one in scene.ids[1:3]:
        arguments = ("pay", "s", one, "ada", "depends on the failed one")
        [row] = pay.call("operator", "skip_stream_head", *arguments)
        assert row["skip_stream_head"] == "skipped_paused"
    assert scene.resume(paused_for=scene.ids[0]) == "still_paused"
    assert scene.resume() == "resumed"
    assert scene.claimed() == scene.ids[3:]


def test_resume_that_names_a_failure_ends_those_before_it_and_none_after_it(outbox):
    """In a pipeline several intents may be out when one fails."""
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=4)
    ids = outbox.enqueue(5, "pay", stream="s")
    [holder] = claim_streams(outbox)
    for one in ids[:4]:
        assert holder.begin([one]) == ["begun"]
        holder.record([one], "SUBMITTED", retry_after_seconds=0)
    for one in ids[:3]:
        assert holder.record([one], "FAILED", reason="invalid", attempt_no=2) == ["applied"]
    holder.release()
    assert shown(outbox) == [(one, "invalid") for one in ids[:3]]
    call = ("operator", "resume_stream", "pay", "s", "ada", "settled", None)
    assert outbox.call(*call, ids[1]) == [{"resume_stream": "still_paused"}]
    assert shown(outbox) == [(ids[2], "invalid")]
    assert outbox.call(*call, ids[1]) == [{"resume_stream": "not_paused"}]
    assert outbox.call(*call, ids[4]) == [{"resume_stream": "not_paused"}]
    assert outbox.call(*call, ids[2]) == [{"resume_stream": "resumed"}]
    [holder] = claim_streams(outbox)
    [head] = [row["intent_id"] for row in holder.heads]
    assert head == ids[3]
    audit = outbox.database.execute("SELECT intent_id FROM leasehold.stream_interventions")
    assert {row["intent_id"] for row in audit} == set(ids[:3])


def shown(outbox):
    [row] = outbox.call("readonly", "read_stream", "pay", "s")
    return [(UUID(one["paused_for"]), one["note"]) for one in row["pauses"]]


@pytest.mark.every_server
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_row_of_an_open_enqueuer_waits_for_every_reason(pay, database, end):
    scene = Scene(pay)
    for one in scene.ids[1:]:
        pay.call("operator", "cancel_intent", one, "ada", "not wanted")
    enqueuer = database.session("ingest")
    enqueuer.run("BEGIN")
    [row] = enqueuer.run(
        "SELECT leasehold.enqueue_intent('pay', '{}', NULL, '{\"stream\": \"s\"}') AS intent_id"
    )
    scene.pause("bob", PAUSE_SECONDS)
    scene.fail()
    assert scene.resume(paused_for=scene.ids[0]) == "still_paused"
    assert not scene.claimed()
    enqueuer.run(end)
    assert not scene.claimed()
    scene.let_pass(PAUSE_SECONDS + 1)
    scene.outbox.expire_lease(scene.holder.lease_name)
    assert scene.claimed() == ([row["intent_id"]] if end == "COMMIT" else None)


def test_each_reason_is_on_record_with_the_person_that_ended_it(pay, database):
    scene = Scene(pay)
    scene.pause("ada")
    scene.fail()
    scene.resume("bob", paused_by="ada")
    scene.resume("bob", paused_for=scene.ids[0])
    rows = database.execute(
        "SELECT action, operator, paused_by, intent_id FROM leasehold.stream_interventions"
        " ORDER BY intervention_id"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("pause", "ada", None, None),
        ("resume", "bob", "ada", None),
        ("resume", "bob", None, scene.ids[0]),
    ]


def test_end_of_an_operator_under_a_pause_is_no_reason(pay):
    scene = Scene(pay)
    scene.pause("ada")
    assert scene.holder.record(scene.ids[:1], "IN_DOUBT") == ["applied"]
    scene.holder.release()
    arguments = (scene.ids[0], "FAILED", "ada", "it did not arrive")
    pay.call("operator", "resolve_intent", *arguments)
    assert scene.reasons() == {"ada"}


def test_resume_names_a_person_or_an_intent(pay):
    scene = Scene(pay)
    for named in (("ada", scene.ids[0]), ("", None), ("x" * 129, None)):
        with refused("22023"):
            pay.call("operator", "resume_stream", "pay", "s", "ada", "why", *named)
