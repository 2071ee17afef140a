"""Stream leases: the two phases of expiry, who may take a stream, and that none is missed."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import Holder, claim_streams
from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

# Phase of the lease, and whether a call is in flight; True if another may take the stream.
TRUTH_TABLE = {
    ("within", "idle"): False,
    ("within", "busy"): False,
    ("first", "idle"): True,
    ("first", "busy"): False,
    ("second", "idle"): True,
    ("second", "busy"): True,
}
CLAIM = "SELECT * FROM leasehold.claim_streams(100, %s, 30, 150, %s)"
SEED_TABLES = """
CREATE TABLE service_id_claims (
  service_id text PRIMARY KEY, claimant text, expiry_1 timestamptz, expiry_2 timestamptz);
CREATE TABLE batches (service_id text, batch_id integer, submitted boolean);
CREATE TABLE batch_statuses (service_id text, batch_id integer, dlt_status text)"""
SEED_CLAIM = """
UPDATE service_id_claims SET claimant = 'holder-1', expiry_1 = now() + interval '30 seconds',
       expiry_2 = now() + interval '3 minutes'
 WHERE claimant IS NULL RETURNING service_id"""
SEED_BATCHES = """
SELECT s.service_id, b.batch_id FROM service_id_claims s
  LEFT JOIN batches b USING (service_id)
  LEFT JOIN batch_statuses bs ON bs.service_id = b.service_id AND bs.batch_id = b.batch_id
 WHERE s.claimant = 'holder-1'
   AND bs.dlt_status NOT IN ('PENDING', 'INVALID', 'VALID', 'COMMITTED')"""
SEED_MAINTENANCE = """
WITH questionable (claimant, batches_in_submission) AS (
  SELECT s.claimant, count(b.batch_id) FROM service_id_claims s
    LEFT JOIN batches b USING (service_id)
    LEFT JOIN batch_statuses bs ON bs.service_id = b.service_id AND bs.batch_id = b.batch_id
   WHERE b.submitted AND (bs.dlt_status IS NULL OR bs.dlt_status = 'UNKNOWN')
     AND extract(epoch FROM now()) - extract(epoch FROM s.expiry_1) > 0
   GROUP BY s.claimant)
UPDATE service_id_claims SET claimant = NULL
 WHERE extract(epoch FROM now()) - extract(epoch FROM expiry_2) > 0
    OR claimant IN (SELECT claimant FROM questionable WHERE batches_in_submission = 0)
RETURNING service_id"""


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream")
    return outbox


def stream_of(holder: Holder) -> str:
    return holder.lease_name.removeprefix("stream/pay/")


def names(holders) -> set[str]:
    return {stream_of(holder) for holder in holders}


@pytest.mark.parametrize("taker", ["holder-1", "holder-2"])
def test_stream_is_taken_over_only_as_its_phase_of_expiry_permits(streams, taker):
    heads = {}
    for phase, load in TRUTH_TABLE:
        [heads[phase, load]] = streams.enqueue(target="pay", stream=f"{phase}-{load}")
    held = {stream_of(holder): holder for holder in claim_streams(streams, "holder-1")}
    for phase, load in TRUTH_TABLE:
        holder = held[f"{phase}-{load}"]
        if load == "busy":
            assert holder.begin([heads[phase, load]]) == ["begun"]
        if phase != "within":
            streams.expire_lease(holder.lease_name, grace=phase == "second")

    taken = {row["stream"] for row in streams.as_role("executor").execute(CLAIM, [taker, ["pay"]])}
    assert taken == {f"{phase}-{load}" for (phase, load), may in TRUTH_TABLE.items() if may}
    doubted = {key for key, head in heads.items() if streams.states(head) == ["IN_DOUBT"]}
    assert doubted == {("second", "busy")}
    [row] = streams.ledger(heads["second", "busy"])
    assert (row["holder"], row["lease_epoch"]) == ("holder-1", 1)


def test_maintenance_query_of_the_seed_never_frees_an_idle_stream(empty_database):
    """It counts only over rows that have a submission, so its count is never 0."""
    empty_database.execute(SEED_TABLES)
    empty_database.execute(
        "INSERT INTO service_id_claims VALUES ('first-idle', 'holder-1',"
        " now() - interval '1 second', now() + interval '3 minutes')"
    )
    assert empty_database.execute(SEED_MAINTENANCE) == []


def test_replaced_slow_holder_can_neither_record_nor_renew(streams):
    [head] = streams.enqueue(target="pay", stream="a")
    [slow] = claim_streams(streams, "holder-1")
    slow.begin([head])
    streams.expire_lease(slow.lease_name, grace=True)
    claim_streams(streams, "holder-2")
    assert slow.record([head], "DISPATCHED") == ["lease_lost"]
    [verdict] = slow.call("renew_streams", slow.name, [slow.lease_name], [slow.epoch], 30, 150)
    assert verdict["verdict"] == "lease_lost"
    assert streams.states(head) == ["IN_DOUBT"]


@pytest.mark.every_server
def test_claim_skips_a_stream_whose_holder_is_writing(streams, database):
    ids = {name: streams.enqueue(target="pay", stream=name) for name in ("a", "b")}
    held = {stream_of(holder): holder for holder in claim_streams(streams, "holder-1")}
    writer, claimer = database.session("executor"), database.session("executor")
    writer.run("BEGIN")
    writer.run(
        "SELECT * FROM leasehold.begin_stream_attempts(%s, %s, %s, %s)",
        [*held["a"].fences, ids["a"]],
    )
    for holder in held.values():
        streams.expire_lease(holder.lease_name)
    assert [row["stream"] for row in claimer.run(CLAIM, ["holder-2", ["pay"]])] == ["b"]
    writer.run("COMMIT")
    assert [row["stream"] for row in claimer.run(CLAIM, ["holder-2", ["pay"]])] == ["a"]
    assert streams.states(ids["a"][0]) == ["IN_DOUBT"]


@pytest.mark.every_server
@pytest.mark.parametrize("before", ["new", "expired"])
def test_racing_claimers_never_hold_the_same_stream(streams, database, before):
    streams.enqueue_entries([{"target": "pay", "payload": 1, "stream": f"s{n}"} for n in range(30)])
    if before == "expired":
        for holder in claim_streams(streams, "the first"):
            streams.expire_lease(holder.lease_name)
    claimed = race(database, 8, lambda caller, number: claim_streams(caller, f"holder-{number}"))
    won = [holder.lease_name for holders in claimed for holder in holders]
    assert len(won) == len(set(won)) == 30
    held = database.execute("SELECT lease_name, holder_id, lease_epoch FROM leasehold.leases")
    expected = {(one.lease_name, one.name, one.epoch) for group in claimed for one in group}
    assert {tuple(row.values()) for row in held} == expected
    assert {holder.epoch for group in claimed for holder in group} == {1 + (before == "expired")}


def test_stream_that_never_had_a_lease_is_found(streams):
    streams.enqueue(target="pay", stream="old")
    assert names(claim_streams(streams)) == {"old"}
    [first] = streams.enqueue(target="pay", stream="brand new")
    [holder] = claim_streams(streams)
    assert stream_of(holder) == "brand new"
    assert [row["intent_id"] for row in holder.heads] == [first]
    assert holder.begin([first]) == ["begun"]


def test_queries_of_the_seed_lose_a_first_batch(empty_database):
    empty_database.execute(SEED_TABLES)
    empty_database.execute("INSERT INTO batches VALUES ('brand new', 1, false)")
    # A service that was never claimed has no row to claim.
    assert empty_database.execute(SEED_CLAIM) == []
    empty_database.execute("INSERT INTO service_id_claims VALUES ('brand new')")
    assert empty_database.execute(SEED_CLAIM) == [{"service_id": "brand new"}]
    # A batch that was never tried has a NULL status, and NOT IN is not true for NULL.
    assert empty_database.execute(SEED_BATCHES) == []
    empty_database.execute("INSERT INTO batch_statuses VALUES ('brand new', 1, 'UNKNOWN')")
    assert len(empty_database.execute(SEED_BATCHES)) == 1


def test_finished_stream_and_other_targets_are_not_claimed(streams):
    streams.publish("other", scope="stream")
    [done] = streams.enqueue(target="pay", stream="done")
    streams.enqueue(target="other", stream="unasked")
    [holder] = claim_streams(streams)
    holder.begin([done])
    [drained] = holder.record_next([done], "DISPATCHED")
    assert (drained["stream_state"], drained["is_held"]) == ("drained", False)
    assert claim_streams(streams) == []
    assert len(claim_streams(streams, targets=["other"])) == 1


def test_claim_counts_expired_streams_for_the_limit_of_their_target(streams):
    """Otherwise a target with one slot would have two calls at once."""
    streams.publish("ship", scope="stream")
    streams.enqueue(target="pay", stream="expired")
    [holder] = claim_streams(streams, "holder-1")
    streams.expire_lease(holder.lease_name)
    for stream in ("due-1", "due-2"):
        streams.enqueue(target="pay", stream=stream)
        streams.enqueue(target="ship", stream=stream)
    limits = ["pay", "ship"], [1, 9]
    taken = streams.call("executor", "claim_streams", 10, "holder-2", 30, 150, *limits)
    assert sorted(row["target"] for row in taken) == ["pay", "ship", "ship"]


def test_lease_of_a_stream_cannot_be_acquired_by_its_name(streams):
    streams.enqueue(target="pay", stream="a")
    with refused("22023"):
        streams.acquire("holder-1", "stream/pay/a")
