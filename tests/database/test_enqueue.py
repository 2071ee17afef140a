"""Enqueue functions: one verdict per entry, one intent per key, no row for a refused entry."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from uuid import RFC_4122

import pytest

from tests.support.race import race
from tests.support.sqlstates import refused, sqlstate_of

pytestmark = pytest.mark.one_server

BODY = base64.b64encode(b"\x00signed\xff").decode()
LONG_AGO = "2020-01-01T00:00:00Z"


@pytest.fixture
def targets(outbox):
    outbox.publish("sms")
    outbox.publish("account", scope="stream")
    outbox.publish("ledger", scope="cluster")
    outbox.publish("urgent", priority=0)
    outbox.publish("brief", retry_policy="deadline", deadline_seconds=90)
    outbox.publish("over", retry_policy="deadline", deadline_seconds=1e-9)
    return outbox


def entry(key=None, target="sms", payload=1, **fields):
    given = {"target": target, "payload": payload, **fields}
    return given if key is None else given | {"idempotency_key": key}


def verdicts(rows):
    return [row["verdict"] for row in rows]


def counts(outbox):
    [row] = outbox.database.execute(
        "SELECT (SELECT count(*) FROM leasehold.intents) AS intents,"
        "       (SELECT count(*) FROM leasehold.outbox_pending) AS pending,"
        "       (SELECT count(*) FROM leasehold.outbox_attempts) AS attempts"
    )
    return row["intents"], row["pending"], row["attempts"]


def intent_row(outbox, intent):
    [row] = outbox.database.execute(
        "SELECT * FROM leasehold.intents WHERE intent_id = %s", [intent]
    )
    return row


# Verdicts


def test_each_entry_of_a_batch_has_its_own_verdict_in_order(targets):
    [first] = targets.enqueue_entries([entry("a", payload={"x": 1})])
    rows = targets.enqueue_entries(
        [
            entry("a", payload={"x": 2}),
            entry("b"),
            entry("a", payload={"x": 1}),
            entry("c", target="nowhere"),
            entry("d", priority=9),
        ]
    )
    assert [row["ordinal"] for row in rows] == [1, 2, 3, 4, 5]
    assert verdicts(rows) == ["conflict", "accepted", "duplicate", "unknown_target", "invalid"]
    assert rows[0]["intent_id"] == rows[2]["intent_id"] == first["intent_id"]
    assert rows[3]["intent_id"] is rows[4]["intent_id"] is None
    assert "'nowhere'" in rows[3]["problem"]
    assert counts(targets) == (2, 2, 0)


@pytest.mark.parametrize("target", ["sms", "account", "ledger"])
def test_known_key_with_another_stream_is_a_conflict_that_says_so(targets, target):
    [first] = targets.enqueue_entries([entry("k", target, stream="alice")])
    bob, both, same = (
        entry("k", target, stream="bob"),
        entry("k", target, stream="bob", payload={"x": 2}),
        entry("k", target, stream="alice", priority=3, delay_seconds=9, metadata={"a": 1}),
    )
    alone = [targets.enqueue_entries([one])[0] for one in (bob, both, same)]
    for rows in (alone, targets.enqueue_entries([bob, both, same])):
        assert verdicts(rows) == ["conflict", "conflict", "duplicate"]
        assert [row["problem"] for row in rows] == ["stream", "payload and stream", None]
        assert {row["intent_id"] for row in rows} == {first["intent_id"]}
    if target != "account":
        [row] = targets.enqueue_entries([entry("k", target)])
        assert (row["verdict"], row["problem"]) == ("conflict", "stream")
    assert counts(targets) == (1, 1, 0)


# A single intent has its own function, enqueue_one. It must accept, refuse and write the same as
# the statement for lists.
ALONE = {
    "a payload": entry(),
    "a large payload": entry(payload={"text": "x" * 100_000}),
    "a body": {"target": "sms", "body": BODY, "content_type": "a/b"},
    "a contract's priority": entry(target="urgent"),
    "its own priority": entry(target="urgent", priority=2),
    "a contract's deadline": entry(target="brief"),
    "its own deadline": entry(target="brief", deadline_seconds=5),
    "a delay": entry(delay_seconds=30),
    "metadata and trace": entry(metadata={"a": 1}, trace_context="00-1-2-01"),
    "a stream of no scope": entry(stream="s"),
    "a new key": entry("new"),
    "a new key of all targets": entry("new", key_scope="all"),
    "a known key": entry("known"),
    "a known key, other payload": entry("known", payload=2),
    "a known key, other stream": entry("known", stream="bob"),
    "a known key, other payload and stream": entry("known", payload=2, stream="bob"),
    "a known key, deadline passed": entry("known", deadline_at=LONG_AGO),
    "a known key of all targets": entry("known-to-all", "ledger", key_scope="all"),
    "a known key, too large": entry("known", payload="x" * 1_048_577),
    "a cluster target": entry(target="ledger"),
    "a cluster target with a key": entry("new", "ledger"),
    "a stream": entry(target="account", stream="s"),
    "a stream with a key": entry("new", "account", stream="s"),
    "a missing stream": entry(target="account"),
    "too large": entry(payload="x" * 1_048_577),
    "null": entry(payload=None),
    "no payload": {"target": "sms"},
    "no target": {"payload": 1},
    "an unknown target": entry(target="nowhere"),
    "an unknown target with a key": entry("new", "nowhere"),
    "a deadline that is over at once": entry(target="over"),
    "an unknown priority": entry(priority=9),
    "both due_at and delay_seconds": entry(due_at=LONG_AGO, delay_seconds=1),
    "a key with control characters": entry("a\nb"),
    "an unknown field": entry(unheard_of=1),
}


@pytest.fixture
def known_keys(targets):
    targets.enqueue_entries([entry("known"), entry("known-to-all", key_scope="all")])
    return targets


def new_name(given):
    """Return the same entry with another new key."""
    return given | ({"idempotency_key": "newer"} if given.get("idempotency_key") == "new" else {})


@pytest.mark.parametrize("given", ALONE)
def test_single_intent_gets_the_same_verdict_and_rows_as_in_a_list(known_keys, given):
    [alone] = known_keys.enqueue_entries([ALONE[given]])
    _, among = known_keys.enqueue_entries([entry(), new_name(ALONE[given])])
    assert (alone["verdict"], alone["problem"]) == (among["verdict"], among["problem"])
    if alone["verdict"] == "accepted":
        assert written(known_keys, alone["intent_id"]) == written(known_keys, among["intent_id"])
    else:
        assert alone["intent_id"] == among["intent_id"]


@pytest.mark.parametrize("given", sorted(ALONE))
def test_enqueue_intent_writes_and_refuses_the_same_as_enqueue_intents(known_keys, given):
    options = new_name(ALONE[given])
    content = json.dumps(options.pop("payload")) if "payload" in options else None
    target, key = options.pop("target", None), options.pop("idempotency_key", None)
    _, among = known_keys.enqueue_entries([entry(), ALONE[given]])
    before = counts(known_keys)
    ingest = known_keys.as_role("ingest")
    call = "SELECT leasehold.enqueue_intent(%s, %s::jsonb, %s, %s::jsonb) AS intent_id"
    arguments = [target, content, key, json.dumps(options)]
    if among["verdict"] in {"accepted", "duplicate"}:
        row = ingest.execute(call, arguments).fetchone()
        assert written(known_keys, row["intent_id"]) == written(known_keys, among["intent_id"])
    else:
        states = {"conflict": "P7005", "too_large": "P7007"}
        with refused(states.get(among["verdict"], "22023")) as raised:
            ingest.execute(call, arguments)
        assert (among["problem"] or str(among["intent_id"])) in str(raised.value)
        assert counts(known_keys) == before


@pytest.mark.parametrize("given", ALONE)
def test_enqueue_one_leaves_only_stream_intents_to_the_path_for_lists(known_keys, given):
    before = counts(known_keys)
    [row] = known_keys.database.execute(
        "SELECT * FROM leasehold.enqueue_one("
        "  jsonb_populate_record(NULL::leasehold.new_intent, %s::jsonb))",
        [json.dumps(ALONE[given])],
    )
    assert (row["verdict"] is None) == (ALONE[given].get("target") == "account")
    is_written = row["verdict"] == "accepted"
    assert counts(known_keys) == (before[0] + is_written, before[1] + is_written, 0)


OWN = ["intent_id", "stream_seq", "created_at", "deadline_at", "due_at", "last_modified_at"]
OWN += ["idempotency_key", "is_claimable"]


def written(outbox, intent_id):
    """Return the rows of an intent without its id, key, stream number and times."""
    if intent_id is None:
        return None
    [row] = outbox.database.execute(
        "SELECT (to_jsonb(i) || to_jsonb(p) || jsonb_build_object("
        "          'submission_key', submission_key = i.intent_id,"
        "          'deadline', i.deadline_at - created_at, 'due', due_at - created_at,"
        "          'modified', last_modified_at = created_at,"
        "          'key', idempotency_key IS NULL))"
        "       - %s::text[] AS whole"
        "  FROM leasehold.intents i JOIN leasehold.outbox_pending p USING (intent_id)"
        " WHERE intent_id = %s",
        [OWN, intent_id],
    )
    return row["whole"]


def test_batch_of_unknown_targets_has_a_verdict_for_each_entry(targets):
    rows = targets.enqueue_entries([entry(target="nowhere"), {"payload": 1}, entry(target="no")])
    assert verdicts(rows) == ["unknown_target", "invalid", "unknown_target"]
    assert counts(targets) == (0, 0, 0)


def test_order_of_keys_and_spacing_of_a_payload_cause_no_conflict(targets):
    ingest = targets.as_role("ingest")
    found = [
        ingest.execute("SELECT * FROM leasehold.enqueue_intents(%s)", [text]).fetchone()
        for text in (
            '[{"target": "sms", "idempotency_key": "k", "payload": {"a":1, "b":{"c":2, "d": 3}}}]',
            '[{"payload": {"b":{"d":3,"c":2},"a":1}, "idempotency_key": "k", "target": "sms"}]',
            '[{"target": "sms", "idempotency_key": "k", "payload": {"a":1, "b":{"c":2, "d": 4}}}]',
        )
    ]
    assert verdicts(found) == ["accepted", "duplicate", "conflict"]
    assert len({row["intent_id"] for row in found}) == 1


def test_same_key_for_another_target_is_another_intent(targets):
    rows = targets.enqueue_entries([entry("k"), entry("k", target="ledger")])
    assert verdicts(rows) == ["accepted", "accepted"]


def test_key_repeated_inside_a_batch_belongs_to_its_first_entry(targets):
    rows = targets.enqueue_entries([entry("k", payload=2), entry("k", payload=2), entry("k")])
    assert verdicts(rows) == ["accepted", "duplicate", "conflict"]
    assert {row["intent_id"] for row in rows} == {rows[0]["intent_id"]}
    assert counts(targets) == (1, 1, 0)
    assert intent_row(targets, rows[0]["intent_id"])["payload"] == 2


def test_duplicate_of_a_finished_intent_does_not_send_it_again(targets):
    [first] = targets.enqueue_entries([entry("k")])
    targets.complete(targets.claim())
    [again] = targets.enqueue_entries([entry("k")])
    assert (again["verdict"], again["intent_id"]) == ("duplicate", first["intent_id"])
    assert targets.claim() == []


def test_repeated_enqueue_after_the_deadline_returns_the_first_intent(targets):
    [first] = targets.enqueue_entries([entry("k", deadline_at="2999-01-01T00:00:00Z")])
    again, other, new = targets.enqueue_entries(
        [
            entry("k", deadline_at=LONG_AGO),
            entry("k", payload=2, deadline_at=LONG_AGO),
            entry("n", deadline_at=LONG_AGO),
        ]
    )
    assert (again["verdict"], again["intent_id"]) == ("duplicate", first["intent_id"])
    assert again["problem"] is None
    assert (other["verdict"], other["intent_id"]) == ("invalid", None)
    assert (new["verdict"], new["intent_id"]) == ("invalid", None)


def test_time_in_the_id_is_not_before_the_creation_of_the_intent(targets):
    """Otherwise a search for intents created since some time would miss it."""
    database = targets.database
    ids = [targets.enqueue()[0] for _ in range(50)]
    [row] = database.execute(
        "SELECT count(*) AS older FROM leasehold.intents"
        " WHERE intent_id < leasehold.lowest_intent_id(created_at)"
    )
    assert (len(ids), row["older"]) == (50, 0)


def test_entry_without_a_key_is_never_a_duplicate(targets):
    assert verdicts(targets.enqueue_entries([entry(), entry()])) == ["accepted", "accepted"]


def test_intent_keeps_the_terms_it_was_accepted_under(targets):
    [first] = targets.enqueue()
    assert targets.publish("sms", attempts_max=5) == 2
    [second] = targets.enqueue()
    versions = [intent_row(targets, intent)["contract_version"] for intent in (first, second)]
    assert versions == [1, 2]


def global_entry(key, target="sms", **more):
    return entry(key, target=target, key_scope="all", **more)


def test_key_of_all_targets_is_a_conflict_for_another_target(targets):
    [first] = targets.enqueue_entries([global_entry("k")])
    rows = targets.enqueue_entries(
        [global_entry("k"), global_entry("k", "ledger"), global_entry("k", payload="other")]
    )
    assert verdicts(rows) == ["duplicate", "conflict", "conflict"]
    assert {row["intent_id"] for row in rows} == {first["intent_id"]}


def test_key_of_one_target_can_be_used_for_another(targets):
    rows = targets.enqueue_entries([entry("k"), entry("k", target="ledger"), global_entry("k")])
    assert verdicts(rows) == ["accepted", "accepted", "duplicate"]


def test_unknown_key_scope_is_refused(targets):
    [row] = targets.enqueue_entries([entry("k", key_scope="tenant")])
    assert (row["verdict"], row["problem"]) == ("invalid", "key_scope must be target or all")


# Concurrency


def test_fifteen_of_sixteen_concurrent_enqueues_of_one_key_find_the_first(targets):
    results = race(
        targets.database, 16, lambda caller, _: caller.enqueue_entries([entry("k")])[0], "ingest"
    )
    assert sorted(verdicts(results)) == ["accepted", *["duplicate"] * 15]
    assert len({row["intent_id"] for row in results}) == 1
    assert counts(targets) == (1, 1, 0)


def test_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(targets):
    """Both insert in the order of keys, not of entries, so both wait for the lowest key."""
    first, second, third, probe = (targets.database.session("ingest") for _ in range(4))
    statement = "SELECT * FROM leasehold.enqueue_intents(%s)"
    first.run("BEGIN")
    first.run(statement, [json.dumps([entry("a")])])
    up = second.start(statement, [json.dumps([entry("a"), entry("b")])])
    up.assert_blocked()
    down = third.start(statement, [json.dumps([entry("b"), entry("a")])])
    down.assert_blocked()
    assert verdicts(probe.run(statement, [json.dumps([entry("b", payload=2)])])) == ["accepted"]
    first.run("ROLLBACK")
    assert sorted(verdicts(up.result()) + verdicts(down.result())) == [
        "accepted",
        "conflict",
        "conflict",
        "duplicate",
    ]


def test_batches_with_crossed_keys_of_all_targets_do_not_deadlock(targets):
    """Sorted by target first, each batch would hold a key that the other waits for."""
    first, second, third, probe = (targets.database.session("ingest") for _ in range(4))
    statement = "SELECT * FROM leasehold.enqueue_intents(%s)"

    def crossed(low, high):
        return [json.dumps([entry("b", target=high, key_scope="all"), global_entry("a", low)])]

    first.run("BEGIN")
    first.run(statement, [json.dumps([global_entry("a", "sms")])])
    one = second.start(statement, crossed("sms", "ledger"))
    one.assert_blocked()
    other = third.start(statement, crossed("ledger", "sms"))
    other.assert_blocked()
    # Neither batch holds the higher key while it waits for the lower one.
    assert verdicts(probe.run(statement, [json.dumps([global_entry("b", "sms")])])) == ["accepted"]
    first.run("ROLLBACK")
    assert sorted(verdicts(one.result()) + verdicts(other.result())) == [
        "accepted",
        "conflict",
        "conflict",
        "duplicate",
    ]


def test_many_batches_in_random_order_do_not_deadlock(targets):
    keys = [f"key-{number}" for number in range(40)]

    def enqueue(caller, number):
        mine = keys[number % 5 :] if number % 2 else keys[::-1]
        return verdicts(caller.enqueue_entries([entry(key) for key in mine]))

    found = [verdict for some in race(targets.database, 8, enqueue, "ingest") for verdict in some]
    assert found.count("accepted") == 40
    assert set(found) == {"accepted", "duplicate"}


def test_rollback_of_the_callers_transaction_leaves_nothing_and_frees_the_key(targets):
    connection = targets.database.connect("ingest", autocommit=False)
    connection.execute(
        "SELECT * FROM leasehold.enqueue_intents(%s)",
        [json.dumps([entry("k", target="account", stream="s")])],
    )
    connection.rollback()
    assert counts(targets) == (0, 0, 0)
    rows = targets.enqueue_entries([entry("k", target="account", stream="s", payload="other")])
    assert verdicts(rows) == ["accepted"]
    assert intent_row(targets, rows[0]["intent_id"])["stream_seq"] == 1


# Content


def test_body_is_stored_unchanged_with_its_content_type(targets):
    given = {"target": "sms", "body": BODY, "content_type": "application/octet-stream"}
    [row] = targets.enqueue_entries([given | {"idempotency_key": "k"}])
    [claim] = targets.claim()
    assert (claim["body"], claim["content_type"]) == (
        b"\x00signed\xff",
        "application/octet-stream",
    )
    assert claim["payload"] is None
    [again] = targets.enqueue_entries([given | {"idempotency_key": "k"}])
    other = base64.b64encode(b"other").decode()
    [conflict] = targets.enqueue_entries([given | {"idempotency_key": "k", "body": other}])
    assert verdicts([row, again, conflict]) == ["accepted", "duplicate", "conflict"]


def test_any_json_but_null_is_a_payload(targets):
    payloads = [False, 0, "", [], {}, [None], {"a": None}, "ü\u2028", 1e15]
    rows = targets.enqueue_entries([entry(payload=payload) for payload in payloads])
    assert set(verdicts(rows)) == {"accepted"}
    found = [intent_row(targets, row["intent_id"])["payload"] for row in rows]
    assert found == payloads


PROBLEMS = [
    ({"target": None}, "target is required"),
    ({"payload": None}, "payload must be given"),
    ({"body": BODY, "content_type": "a/b"}, "payload must be given"),
    ({"content_type": "a/b"}, "content_type must be given with body"),
    ({"payload": None, "body": BODY}, "content_type must be given with body"),
    ({"payload": None, "body": BODY, "content_type": ""}, "content_type must be"),
    ({"payload": None, "body": BODY, "content_type": "a\nb"}, "content_type must be"),
    ({"idempotency_key": ""}, "idempotency_key must be"),
    ({"idempotency_key": "k" * 256}, "idempotency_key must be"),
    ({"idempotency_key": "k\nk"}, "idempotency_key must be"),
    ({"target": "account"}, "stream is missing"),
    ({"target": "account", "stream": ""}, "stream must be"),
    ({"target": "account", "stream": "s" * 256}, "stream must be"),
    ({"stream": "s\ts"}, "stream must be"),
    ({"priority": -1}, "priority must be"),
    ({"priority": 4}, "priority must be"),
    ({"due_at": LONG_AGO, "delay_seconds": 1}, "delay_seconds must not be given with"),
    ({"delay_seconds": -1}, "delay_seconds must be"),
    ({"delay_seconds": "NaN"}, "delay_seconds must be"),
    ({"delay_seconds": "Infinity"}, "delay_seconds must be"),
    ({"delay_seconds": 1e300}, "delay_seconds must be"),
    ({"due_at": "infinity"}, "due_at must be"),
    ({"due_at": "-infinity"}, "due_at must be"),
    ({"due_at": "9999-01-01T00:00:00Z"}, "due_at must be"),
    # Python cannot read these years back, and one such row would stop whoever claims or lists it.
    ({"due_at": "1969-12-31T23:59:59Z"}, "due_at must be"),
    ({"due_at": "4000-01-01T00:00:00Z BC"}, "due_at must be"),
    ({"deadline_at": "9999-12-31T23:59:59-12:00"}, "deadline_at must be"),
    ({"deadline_at": "20000-01-01T00:00:00Z"}, "deadline_at must be"),
    (
        {"deadline_at": "2999-01-01T00:00:00Z", "deadline_seconds": 1},
        "deadline_seconds must not be given with",
    ),
    ({"deadline_seconds": -1}, "deadline_seconds must be"),
    ({"deadline_seconds": "NaN"}, "deadline_seconds must be"),
    ({"deadline_seconds": 1e300}, "deadline_seconds must be"),
    ({"deadline_seconds": 0}, "deadline_seconds must be above 0"),
    ({"deadline_at": LONG_AGO}, "deadline_at must be after now"),
    ({"deadline_at": "infinity"}, "deadline_at must be after 1970"),
    ({"deadline_seconds": 10, "delay_seconds": 20}, "deadline_seconds must be after now"),
    ({"metadata": {"m": "m" * 16384}}, "metadata is over"),
    ({"trace_context": "t" * 513}, "trace_context must be"),
    ({"trace_context": "t\nt"}, "trace_context must be"),
]


def test_invalid_entry_is_refused_with_its_problem_and_not_written(targets):
    given = [{"target": "sms", "payload": 1} | fields for fields, _ in PROBLEMS]
    rows = targets.enqueue_entries([*given, entry()])
    wrong = [
        (fields, row["verdict"], row["problem"])
        for (fields, problem), row in zip(PROBLEMS, rows[:-1], strict=True)
        if row["verdict"] != "invalid" or problem not in row["problem"]
    ]
    assert wrong == []
    assert {row["intent_id"] for row in rows[:-1]} == {None}
    assert rows[-1]["verdict"] == "accepted"
    assert counts(targets) == (1, 1, 0)


def test_refused_entry_leaves_no_stream_behind(targets):
    refusals = [
        entry(target="account", stream="a", payload=None),
        entry(target="account", stream="b\n"),
        entry(target="account", stream="c", priority=7),
    ]
    assert set(verdicts(targets.enqueue_entries(refusals))) == {"invalid"}
    assert targets.database.execute("SELECT stream FROM leasehold.streams") == []


NO_INTENTS = [
    "null",
    "{}",
    "42",
    '"text"',
    "[]",
    "[42]",
    "[null]",
    "[[]]",
    '[{"target": "sms", "payload": 1}, 42]',
    '[{"target": "sms", "payload": 1}, {"target": "sms", "body": "?", "content_type": "a/b"}]',
    '[{"target": "sms", "payload": 1}, {"target": "sms", "payload": 1, "priority": 100000}]',
    '[{"target": "sms", "payload": 1}, {"target": "sms", "payload": 1, "priority": "high"}]',
    '[{"target": "sms", "payload": 1}, {"target": "sms", "payload": 1, "due_at": "soon"}]',
    '[{"target": "sms", "payload": 1}, {"target": "sms", "payload": 1, "delay_seconds": 1e999}]',
]


def test_argument_that_is_not_a_list_of_intents_is_refused(targets):
    statement = "SELECT * FROM leasehold.enqueue_intents(%s)"
    ingest = targets.as_role("ingest")
    states = {
        given: sqlstate_of(lambda given=given: ingest.execute(statement, [given]))
        for given in NO_INTENTS
    }
    assert {
        given: state for given, state in states.items() if not str(state).startswith("22")
    } == {}
    assert {states[given] for given in NO_INTENTS[:9]} == {"22023"}
    assert counts(targets) == (0, 0, 0)


def test_ten_thousand_are_accepted_and_one_more_is_refused(targets):
    given = [{"target": "sms", "payload": number} for number in range(10_001)]
    with refused("22023"):
        targets.enqueue_entries(given)
    assert counts(targets) == (0, 0, 0)
    rows = targets.enqueue_entries(given[:-1])
    assert [row["ordinal"] for row in rows] == list(range(1, 10_001))
    assert set(verdicts(rows)) == {"accepted"}
    assert counts(targets) == (10_000, 10_000, 0)


# Times and ids


def test_due_time_and_deadline_are_as_given_but_not_before_now(targets):
    targets.publish("slow", deadline_seconds=60)
    rows = targets.enqueue_entries(
        [
            entry(delay_seconds=90, deadline_seconds=100),
            entry(due_at=LONG_AGO),
            entry(target="slow"),
            entry(target="slow", deadline_seconds=7),
            entry(),
        ]
    )
    assert set(verdicts(rows)) == {"accepted"}
    created = intent_row(targets, rows[0]["intent_id"])["created_at"]
    pending = [targets.pending(row["intent_id"]) for row in rows]
    assert [row["due_at"] - created for row in (pending[0], pending[4])] == [
        timedelta(seconds=90),
        timedelta(0),
    ]
    assert pending[1]["due_at"] == created, "a due time that has passed"
    assert [row["deadline_at"] and row["deadline_at"] - created for row in pending] == [
        timedelta(seconds=100),
        None,
        timedelta(seconds=60),
        timedelta(seconds=7),
        None,
    ]


def test_ids_are_version_7_and_carry_the_time_of_acceptance(targets):
    before = targets.database.execute("SELECT clock_timestamp() AS now")[0]["now"]
    ids = targets.enqueue(50)
    after = targets.database.execute("SELECT clock_timestamp() AS now")[0]["now"]
    assert len(set(ids)) == 50
    for intent in ids:
        assert (intent.version, intent.variant) == (7, RFC_4122)
        milliseconds = intent.int >> 80
        assert before.timestamp() * 1000 - 1 <= milliseconds <= after.timestamp() * 1000
    assert ids == sorted(ids)  # in the order of the batch
    later = targets.enqueue()[0]
    assert later.int >> 80 >= ids[0].int >> 80


def test_largest_batch_has_an_id_for_each_entry(targets):
    ids = targets.enqueue(10_000)
    assert len(set(ids)) == 10_000
    assert ids == sorted(ids)
    assert {(intent.version, intent.variant) for intent in ids} == {(7, RFC_4122)}


def test_intents_without_a_key_store_neither_key_nor_hash(targets):
    first, second = targets.enqueue(2)
    rows = targets.database.execute(
        "SELECT idempotency_key, payload_hash FROM leasehold.intents WHERE intent_id = ANY (%s)",
        [[first, second]],
    )
    assert [tuple(row.values()) for row in rows] == [(None, None)] * 2


def test_submission_key_is_the_id_of_the_intent(targets):
    [intent] = targets.enqueue()
    [claim] = targets.claim()
    assert claim["submission_key"] == intent


# enqueue_intent


def enqueue_one(outbox, *arguments):
    [row] = outbox.call("ingest", "enqueue_intent", *arguments)
    return row["enqueue_intent"]


def test_enqueue_intent_returns_the_first_id_and_raises_on_a_conflict(targets):
    first = enqueue_one(targets, "sms", {"a": 1}, "k")
    assert enqueue_one(targets, "sms", {"a": 1}, "k") == first
    with refused("P7005") as caught:
        enqueue_one(targets, "sms", {"a": 2}, "k")
    assert caught.value.diag.message_detail == str(first)
    assert "another payload" in str(caught.value)
    with refused("P7005") as caught:
        enqueue_one(targets, "sms", {"a": 1}, "k", {"stream": "bob"})
    assert f"idempotency key 'k' of target 'sms' was already used for intent {first}" in str(
        caught.value
    )
    assert "with another stream" in str(caught.value)
    assert counts(targets) == (1, 1, 0)


def test_enqueue_intent_takes_options_and_refuses_impossible_ones(targets):
    intent = enqueue_one(targets, "account", {"a": 1}, "k", {"stream": "s", "priority": 3})
    row = targets.pending(intent)
    assert (row["stream"], row["stream_seq"], row["priority"]) == ("s", 1, 3)
    for arguments in (
        ("nowhere", {"a": 1}, None),
        (None, {"a": 1}, None),
        ("sms", None, None),
        ("sms", {"a": 1}, ""),
        ("sms", {"a": 1}, None, {"priority": 17}),
        ("sms", {"a": 1}, None, None),
    ):
        with refused("22023"):
            enqueue_one(targets, *arguments)
    assert counts(targets) == (1, 1, 0)
