"""append_attempts writes a plain batch without judge_outcomes, and writes the same rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.support.lease_holder import leased_result, take
from tests.support.outbox import CLUSTER_LEASE, ZERO_ID, result_of
from tests.support.sqlstates import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.outbox import Outbox

pytestmark = pytest.mark.one_server

RECORD = "SELECT * FROM leasehold.record_attempts(%s, %s, %s, %s)"
ACQUIRE = "SELECT * FROM leasehold.acquire_lease(%s, %s, 60)"
SECONDS = 0.25
UUID_MAX = UUID(int=2**128 - 1)


@dataclass
class Reporter:
    """Reports results under a cluster lease or under claims, with the same interface."""

    outbox: Outbox
    fence: str

    def __post_init__(self) -> None:
        scope = "cluster" if self.fence == "lease" else "item"
        self.outbox.publish("sms", scope=scope)
        self.outbox.publish("careful", scope=scope, guarantee="lookup")
        other = {"lease_name": "other-lease"} if scope == "cluster" else {}
        self.outbox.publish("other", scope=scope, **other)
        self.holder = take(self.outbox) if self.fence == "lease" else None
        self.claims: dict[UUID, Any] = {}

    def new(self, target: str = "sms") -> UUID:
        """Return an intent that the reporter holds."""
        [intent_id] = self.outbox.enqueue(target=target)
        self.hold(target)
        return intent_id

    def hold(self, target: str) -> None:
        if self.fence == "claim":
            self.outbox.make_due()
            self.claims |= {row["intent_id"]: row for row in self.outbox.claim(targets=[target])}

    def begin(self, intent_id: UUID) -> None:
        if self.holder:
            assert self.holder.begin([intent_id]) == ["begun"]
        else:
            [row] = self.outbox.begin([self.claims[intent_id]])
            assert row["verdict"] == "begun"

    def report(self, ids: list[UUID], state: str = "DISPATCHED", **fields: Any) -> dict[UUID, str]:
        fields = {"elapsed_seconds": SECONDS} | fields
        if self.holder:
            results = [leased_result(one, state, **fields) for one in ids]
            rows = self.holder.call("record_attempts", *self.holder.fence, results)
        else:
            unknown = {"lease_token": ZERO_ID}
            claims = [self.claims.get(one, unknown) | {"intent_id": one} for one in ids]
            results = [result_of(claim, state, **fields) for claim in claims]
            rows = self.outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
        assert len(rows) == len(ids)
        return {row["intent_id"]: row["verdict"] for row in rows}


@pytest.fixture(params=["lease", "claim"])
def reporter(request, outbox):
    return Reporter(outbox, request.param)


@pytest.fixture
def leader(outbox):
    return Reporter(outbox, "lease")


def fresh(reporter):
    return reporter.new()


def begun(reporter):
    intent_id = reporter.new("careful")
    reporter.begin(intent_id)
    return intent_id


def tried(reporter):
    intent_id = reporter.new()
    assert reporter.report([intent_id], "RETRYABLE", retry_after_seconds=0) == {
        intent_id: "applied"
    }
    reporter.hold("sms")
    return intent_id


def submitted(reporter):
    """Return a submitted intent with a reference."""
    intent_id = reporter.new()
    assert reporter.report([intent_id], "SUBMITTED") == {intent_id: "applied"}
    reporter.hold("sms")
    return intent_id


def miscounted(reporter):
    """Return an intent with a wrong attempt_count: the ledger decides the attempt number."""
    intent_id = tried(reporter)
    reporter.outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET attempt_count = 7 WHERE intent_id = %s", [intent_id]
    )
    return intent_id


def finished(reporter):
    intent_id = reporter.new()
    reporter.report([intent_id], "FAILED")
    return intent_id


def foreign(reporter):
    """Return a pending intent of another lease or claim."""
    return reporter.outbox.enqueue(target="other")[0]


def foreign_scope(reporter):
    """Return a pending intent of the other scope."""
    scope = "item" if reporter.fence == "lease" else "cluster"
    reporter.outbox.publish("elsewhere", scope=scope)
    return reporter.outbox.enqueue(target="elsewhere")[0]


def missing(reporter):
    del reporter
    return ZERO_ID


PLAIN: list[Callable[[Reporter], UUID]] = [fresh, begun, tried, submitted, miscounted]
REFUSED = {
    finished: {"lease": "already_terminal", "claim": "already_terminal"},
    foreign: {"lease": "not_found", "claim": "lease_lost"},
    foreign_scope: {"lease": "not_found", "claim": "lease_lost"},
    missing: {"lease": "not_found", "claim": "not_found"},
}


def ledger_rows(reporter, intent_id):
    """Return the rows without the columns that always differ, and the duration of the last call."""
    rows = reporter.outbox.ledger(intent_id)
    apart = ("intent_id", "started_at", "finished_at", "transaction_id", "lease_token")
    kept = [{name: row[name] for name in row if name not in apart} for row in rows]
    return kept, (rows[-1]["finished_at"] - rows[-1]["started_at"]).total_seconds()


@pytest.mark.parametrize("has_words", [False, True], ids=["plain", "with words of the gateway"])
@pytest.mark.parametrize("state", ["DISPATCHED", "FAILED"])
@pytest.mark.parametrize("other", REFUSED, ids=lambda kind: kind.__name__)
def test_plain_batch_writes_what_a_judged_batch_writes(reporter, has_words, state, other):
    """The second batch has one refused result, so judge_outcomes judges it."""
    plain, judged = ([kind(reporter) for kind in PLAIN] for _ in range(2))
    words = {"reference": "r-1", "code": "200", "detail": "d" * 3000} if has_words else {}
    outsider = other(reporter)
    assert reporter.report(plain[::-1], state, **words) == dict.fromkeys(plain, "applied")
    assert reporter.report([*judged, outsider], state, **words) == dict.fromkeys(
        judged, "applied"
    ) | {outsider: REFUSED[other][reporter.fence]}
    for kind, one, twin in zip(PLAIN, plain, judged, strict=True):
        (ours, seconds), (theirs, other_seconds) = (
            ledger_rows(reporter, each) for each in (one, twin)
        )
        assert ours == theirs
        # A begun call lasts until now, so its duration depends on the test.
        assert seconds == other_seconds or (kind is begun and seconds > 0 < other_seconds)
        assert reporter.outbox.pending(one) is reporter.outbox.pending(twin) is None


def test_only_a_plain_batch_skips_judge_outcomes(reporter):
    """Without judge_outcomes, only plain batches can be written."""
    batches = [[kind(reporter) for kind in PLAIN] for _ in range(3)]
    reporter.outbox.database.owner_execute(
        "ALTER FUNCTION leasehold.judge_outcomes(leasehold.outcome[], timestamptz, text)"
        " RENAME TO judge_outcomes_gone"
    )
    assert reporter.report(batches[0]) == dict.fromkeys(batches[0], "applied")
    with refused("42883"):
        reporter.report([*batches[1], UUID_MAX])
    with refused("42883"):
        reporter.report(batches[2], "SUBMITTED")


def test_claimed_row_is_refused_without_its_token(outbox):
    """NULL does not match the token of an unclaimed row either."""
    workers = Reporter(outbox, "claim")
    claimed, [unclaimed] = workers.new(), outbox.enqueue()
    results = [
        {"intent_id": str(one), "lease_token": None, "state": "DISPATCHED"}
        for one in sorted([claimed, unclaimed])
    ]
    rows = outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
    assert {row["verdict"] for row in rows} == {"lease_lost"}
    rows = outbox.call("executor", "complete_outbox_attempts", "worker-1", results[:1])
    assert {row["verdict"] for row in rows} == {"lease_lost"}


@pytest.mark.parametrize("what", ["expired", "another worker's", "another token"])
def test_claim_that_is_lost_is_refused_in_a_batch_of_dispatched_results(outbox, what):
    workers = Reporter(outbox, "claim")
    ids = [workers.new() for _ in range(3)]
    lost = ids[1]
    change = {
        "expired": "lease_expires_at = clock_timestamp()",
        "another worker's": "claimed_by = 'worker-2'",
        "another token": "lease_token = gen_random_uuid()",
    }[what]
    outbox.database.owner_execute(
        f"UPDATE leasehold.outbox_pending SET {change} WHERE intent_id = %s", [lost]
    )
    assert workers.report(ids) == dict.fromkeys(ids, "applied") | {lost: "lease_lost"}
    assert [outbox.states(one) for one in ids] == [["DISPATCHED"], [], ["DISPATCHED"]]


def test_result_of_a_call_that_had_to_be_begun_first_is_refused(reporter):
    unbegun, other = reporter.new("careful"), begun(reporter)
    with refused("P7003"):
        reporter.report([unbegun, other])
    assert [reporter.outbox.states(one) for one in (unbegun, other)] == [[], []]


def test_stale_holder_writes_nothing(leader, outbox):
    ids = [leader.new() for _ in range(3)]
    outbox.expire_lease()
    take(outbox, "holder-2")
    with refused("P7002"):
        leader.report(ids)
    assert [outbox.states(one) for one in ids] == [[], [], []]


def dispatched(*ids):
    return json.dumps([leased_result(one, "DISPATCHED", elapsed_seconds=SECONDS) for one in ids])


def test_takeover_waits_for_a_writer_in_flight_and_then_sees_its_work(leader, outbox, database):
    intent_id = leader.new()
    slow, successor = database.session("executor"), database.session("executor")
    slow.run("BEGIN")
    slow.run(RECORD, [*leader.holder.fence, dispatched(intent_id)])
    outbox.expire_lease()
    waiting = successor.start(ACQUIRE, [CLUSTER_LEASE, "holder-2"])
    waiting.assert_blocked()
    slow.run("COMMIT")
    [answer] = waiting.result()
    assert (answer["acquired"], answer["lease_epoch"]) == (True, 2)
    assert outbox.states(intent_id) == ["DISPATCHED"]


@pytest.mark.parametrize("what", ["cancelled", "moved"])
def test_row_that_changes_meanwhile_is_judged_when_it_is_free(leader, outbox, database, what):
    """One row is deleted, the other moves within the table; nothing is written twice."""
    first, second = sorted([leader.new(), leader.new()])
    other, writer = database.session(), database.session("executor")

    def write(*ids):
        rows = writer.run(RECORD, [*leader.holder.fence, dispatched(*ids)])
        return {row["intent_id"]: row["verdict"] for row in rows}

    other.run("BEGIN")
    if what == "cancelled":
        other.run("SELECT leasehold.cancel_intent(%s, 'ann', 'a test')", [second])
    else:
        other.run("UPDATE leasehold.outbox_pending SET reference = 'r-9'")
    is_cancelled = what == "cancelled"
    verdicts = write(first, second)
    assert verdicts == {first: "applied" if is_cancelled else "locked", second: "locked"}
    other.run("COMMIT")
    verdicts |= write(*[one for one, verdict in verdicts.items() if verdict == "locked"])
    assert verdicts == {first: "applied", second: "already_terminal" if is_cancelled else "applied"}
    assert outbox.states(first) == ["DISPATCHED"]
    assert outbox.states(second) == ["CANCELLED" if is_cancelled else "DISPATCHED"]
    assert outbox.ledger(first)[0]["reference"] == (None if is_cancelled else "r-9")
    assert outbox.pending(first) is outbox.pending(second) is None
