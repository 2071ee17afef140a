"""Claims of items: which worker gets which item under which token."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.support.race import race
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

WHOLE_LEASE = {"claimed_by": "worker-1", "lease_token": uuid4(), "lease_expires_at": "infinity"}


def test_not_even_the_owner_can_write_a_row_with_half_a_claim(outbox):
    outbox.publish()
    outbox.enqueue()
    names = list(WHOLE_LEASE)
    for given in [[name] for name in names] + [[n for n in names if n != name] for name in names]:
        places = ", ".join(f"{name} = %s" for name in given)
        with refused("23514") as caught:
            outbox.database.owner_execute(
                f"UPDATE leasehold.outbox_pending SET {places}",
                [WHOLE_LEASE[name] for name in given],
            )
        assert caught.value.diag.constraint_name == "outbox_pending_lease_all_or_none"


def test_new_intent_is_not_claimed(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    row = outbox.pending(intent)
    assert [row[column] for column in WHOLE_LEASE] == [None, None, None]


def test_claim_gives_the_pending_row_a_lease_of_the_requested_length(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    [claim] = outbox.claim(lease_seconds=45)
    row = outbox.pending(intent)
    assert claim["intent_id"] == intent
    assert claim["attempt_no"] == 1
    assert claim["payload"] == {"number": 0}
    assert claim["lease_expires_at"] - claim["claimed_at"] == timedelta(seconds=45)
    assert row["claimed_by"] == "worker-1"
    assert row["lease_token"] == claim["lease_token"]
    assert row["lease_expires_at"] == claim["lease_expires_at"]
    assert outbox.ledger(intent) == []


def test_second_worker_gets_nothing_that_the_first_one_holds(outbox):
    outbox.publish()
    outbox.enqueue(3)
    first = outbox.claim("worker-1", batch_size=2)
    second = outbox.claim("worker-2", batch_size=10)
    third = outbox.claim("worker-1", batch_size=10)
    assert len(first) == 2
    assert len(second) == 1
    assert third == []


def test_no_claim_ever_repeats_a_token(outbox):
    outbox.publish()
    outbox.enqueue(4)
    released = outbox.claim()
    ids = [claim["intent_id"] for claim in released]
    tokens = [claim["lease_token"] for claim in released]
    outbox.call("executor", "release_outbox_claims", "worker-1", ids, tokens, 0)
    tokens += [claim["lease_token"] for claim in outbox.claim()]
    end_expired_claims(outbox)
    again = outbox.claim("worker-1")
    tokens += [claim["lease_token"] for claim in again]
    outbox.complete(again, "RETRYABLE", retry_after_seconds=0)
    tokens += [claim["lease_token"] for claim in outbox.claim()]
    assert len(tokens) == len(set(tokens)) == 16


def test_item_that_is_not_due_or_has_another_target_is_not_claimed(outbox):
    outbox.publish()
    outbox.publish("mail")
    outbox.enqueue(2, delay_seconds=60)
    outbox.enqueue(2, target="mail")
    assert outbox.claim() == []
    assert outbox.claim(targets=[]) == []
    assert outbox.claim(targets=["never-published"]) == []


def test_items_of_cluster_and_stream_targets_are_not_claimed(outbox):
    outbox.publish("ledger", scope="cluster")
    outbox.publish("account", scope="stream")
    outbox.enqueue(2, target="ledger")
    outbox.enqueue(2, target="account", stream="a")
    assert outbox.claim(targets=["ledger", "account"]) == []


def test_items_are_claimed_by_priority_and_then_by_due_time(outbox):
    outbox.publish()
    entries = [
        {"target": "sms", "payload": 1, "priority": priority, "delay_seconds": seconds}
        for priority, seconds in [(3, 1), (1, 3), (0, 4), (1, 2), (0, 5), (2, 1)]
    ]
    ids = [row["intent_id"] for row in outbox.enqueue_entries(entries)]
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '6 seconds'"
    )
    claimed = [outbox.claim(batch_size=1)[0]["intent_id"] for _ in ids]
    assert claimed == [ids[2], ids[4], ids[3], ids[1], ids[5], ids[0]]


def end_expired_claims(outbox, targets=("sms",)):
    """Let claims expire, and let the next claim end them; then let the second pass."""
    outbox.expire_claims()
    assert outbox.claim("alive", targets=targets) == []
    outbox.make_due()


def test_claim_of_a_dead_worker_is_replaced_and_recorded_in_its_name(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    [lost] = outbox.claim("dead")
    end_expired_claims(outbox)
    [claim] = outbox.claim("alive")
    [zombie] = outbox.ledger(intent)
    assert claim["intent_id"] == intent
    assert claim["lease_token"] != lost["lease_token"]
    assert claim["attempt_no"] == 2
    assert (zombie["state"], zombie["holder"], zombie["reason"]) == (
        "ZOMBIE_REQUEUE",
        "dead",
        "lease_expired",
    )
    assert zombie["lease_token"] == lost["lease_token"]
    assert outbox.pending(intent)["attempt_count"] == 1


def test_expired_claim_whose_call_had_begun_is_not_given_to_the_next_worker(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    outbox.begin(outbox.claim("dead"), "dead")
    outbox.expire_claims()
    assert outbox.claim("alive") == []
    assert outbox.pending(intent)["claimed_by"] == "dead"
    assert outbox.ledger(intent) == []


def test_live_claim_is_not_taken_however_often_others_ask(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    [claim] = outbox.claim("slow")
    for _ in range(3):
        assert outbox.claim("eager") == []
    assert outbox.pending(intent)["lease_token"] == claim["lease_token"]
    assert outbox.ledger(intent) == []


def test_expired_claim_without_an_attempt_left_is_repaired_not_claimed(outbox):
    outbox.publish("single", attempts_max=1)
    outbox.publish("once", retry_policy="one_shot")
    ids = outbox.enqueue(target="single") + outbox.enqueue(target="once")
    outbox.claim("dead", targets=["single", "once"])
    outbox.expire_claims()
    assert outbox.claim("alive", targets=["single", "once"]) == []
    outbox.call("executor", "repair_expired_leases", 10, "reaper")
    assert [outbox.states(intent) for intent in ids] == [["FAILED"], ["FAILED"]]


def test_expired_claims_do_not_make_a_batch_exceed_its_size(outbox):
    outbox.publish()
    outbox.enqueue(10)
    outbox.claim("dead", batch_size=6)
    outbox.expire_claims()
    assert len(outbox.claim("alive", batch_size=1)) == 1, "the other four are due"
    outbox.make_due()
    assert len(outbox.claim("alive", batch_size=3)) == 3


# Shares of a batch


@pytest.fixture
def three_targets(outbox):
    for target in ("flood", "mail", "sms"):
        outbox.publish(target)
    return ["flood", "mail", "sms"]


def claimed_by_target(claims):
    return Counter(claim["target"] for claim in claims)


def test_flood_for_one_target_does_not_starve_the_others(outbox, three_targets):
    outbox.enqueue(200, target="flood", priority=0)
    outbox.enqueue(20, target="mail")
    outbox.enqueue(20, target="sms", priority=3)
    claims = claimed_by_target(outbox.claim(batch_size=12, targets=three_targets))
    assert claims == {"flood": 4, "mail": 4, "sms": 4}


def test_other_targets_get_the_share_that_a_target_does_not_use(outbox, three_targets):
    outbox.enqueue(200, target="flood")
    outbox.enqueue(1, target="mail")
    claims = claimed_by_target(outbox.claim(batch_size=12, targets=three_targets))
    assert claims == {"flood": 11, "mail": 1}


@pytest.mark.parametrize("limits", [None, [100, 1, 1]])
def test_whole_batch_goes_to_the_one_target_that_has_work(outbox, three_targets, limits):
    """The target may be in any position, so its own share is three or four."""
    outbox.enqueue(11 * 20, target="flood")
    for _ in range(20):
        claims = outbox.call(
            "executor", "claim_outbox_batch", 11, "worker-1", 30, three_targets, limits
        )
        assert claimed_by_target(claims) == {"flood": 11}


def test_batch_smaller_than_the_number_of_targets_reaches_each_in_turn(outbox, three_targets):
    outbox.enqueue(100, target="flood")
    outbox.enqueue(1, target="mail")
    outbox.enqueue(1, target="sms")
    seen = set()
    for _ in range(100):
        [claim] = outbox.claim(batch_size=1, targets=three_targets)
        seen.add(claim["target"])
        if seen == set(three_targets):
            return
    raise AssertionError(f"a hundred claims of one reached only {seen}")


def test_target_never_exceeds_its_limit_even_if_others_need_less(outbox, three_targets):
    for target in three_targets:
        outbox.enqueue(20, target=target)
    claims = outbox.call(
        "executor", "claim_outbox_batch", 30, "worker-1", 30, three_targets, [2, 0, 25]
    )
    assert claimed_by_target(claims) == {"flood": 2, "sms": 20}


def test_limit_of_a_target_applies_to_its_expired_claims_too(outbox, three_targets):
    outbox.enqueue(10, target="flood")
    outbox.claim("dead", targets=three_targets, batch_size=10)
    end_expired_claims(outbox, three_targets)
    claims = outbox.call(
        "executor", "claim_outbox_batch", 30, "worker-1", 30, three_targets, [3, 30, 30]
    )
    assert claimed_by_target(claims) == {"flood": 3}


# Many claimers


def forget_statistics(outbox):
    """Give the planner the statistics of an empty table."""
    outbox.database.execute("ANALYZE leasehold.outbox_pending")


def tamper_statistics(reltuples, relpages):
    def tamper(outbox):
        outbox.database.execute(
            "UPDATE pg_class SET reltuples = %s, relpages = %s"
            " WHERE oid IN (SELECT indexrelid FROM pg_index"
            "                WHERE indrelid = 'leasehold.outbox_pending'::regclass)"
            "    OR oid IN ('leasehold.outbox_pending'::regclass, 'leasehold.intents'::regclass)",
            [reltuples, relpages],
        )

    return tamper


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, None, id="never analyzed"),
        pytest.param(forget_statistics, None, id="analyzed while empty"),
        pytest.param(None, tamper_statistics(1, 1), id="believed to hold one row"),
        pytest.param(None, tamper_statistics(5e8, 10**7), id="believed to hold half a billion"),
        pytest.param(None, forget_statistics, id="analyzed when full"),
    ],
)
def test_eight_claimers_never_overlap_and_never_exceed_their_batch(outbox, before, after):
    outbox.publish()
    outbox.database.execute("ALTER TABLE leasehold.outbox_pending SET (autovacuum_enabled = false)")
    if before:
        before(outbox)
    ids = outbox.enqueue(400)
    if after:
        after(outbox)

    def claim_all(caller, number):
        batches = []
        while batch := caller.claim(f"worker-{number}", batch_size=7 + number % 3):
            assert len(batch) <= 7 + number % 3
            batches += [(claim["intent_id"], claim["lease_token"]) for claim in batch]
        return batches

    claims = [claim for batches in race(outbox.database, 8, claim_all) for claim in batches]
    assert Counter(intent for intent, _ in claims) == Counter(ids)
    assert len({token for _, token in claims}) == 400


@pytest.mark.every_server
def test_fifteen_of_sixteen_claimers_of_one_item_get_nothing(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    results = race(
        outbox.database, 16, lambda caller, number: caller.claim(f"worker-{number}", batch_size=1)
    )
    [winner] = [result[0] for result in results if result]
    assert outbox.pending(intent)["lease_token"] == winner["lease_token"]


@pytest.mark.every_server
def test_fifteen_of_sixteen_claimers_of_one_expired_claim_get_nothing(outbox):
    outbox.publish()
    [intent] = outbox.enqueue()
    outbox.claim("dead")
    outbox.expire_claims()
    results = race(outbox.database, 16, lambda caller, number: caller.claim(f"worker-{number}"))
    assert not any(results), "it is due in a second"
    assert outbox.states(intent) == ["ZOMBIE_REQUEUE"], "one of them ended the claim"
    outbox.make_due()
    results = race(outbox.database, 16, lambda caller, number: caller.claim(f"worker-{number}"))
    assert len([result for result in results if result]) == 1


@pytest.mark.parametrize("ends_it", ["claim", "repair"])
def test_expired_claim_is_due_in_one_second_whoever_ends_it(outbox, ends_it):
    outbox.publish()
    [intent] = outbox.enqueue()
    outbox.claim("dead")
    outbox.expire_claims()
    if ends_it == "claim":
        outbox.claim("alive")
    else:
        outbox.call("executor", "repair_expired_leases", 10, "reaper")
    [zombie] = outbox.ledger(intent)
    waits = outbox.pending(intent)["due_at"] - zombie["finished_at"]
    assert (zombie["state"], waits.total_seconds()) == ("ZOMBIE_REQUEUE", 1)
