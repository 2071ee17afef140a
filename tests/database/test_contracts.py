"""Contracts: immutable versions of a target's terms; impossible terms are refused."""

from __future__ import annotations

import pytest

from tests.support.race import race
from tests.support.sqlstates import refused, sqlstate_of

pytestmark = pytest.mark.one_server

# Each of these alone makes valid terms invalid.
REFUSED_TERMS = [
    {"scope": None},
    {"scope": "galaxy"},
    {"scope": 5},
    {"guarantee": None},
    {"guarantee": "hopeful"},
    {"lease_name": "an item has no lease"},
    {"scope": "stream", "lease_name": "nor has a stream"},
    {"scope": "cluster", "lease_name": None},
    {"scope": "cluster", "lease_name": ""},
    {"scope": "cluster", "lease_name": "x" * 65},
    {"scope": "cluster", "lease_name": "stream/pay/a"},
    {"scope": "cluster", "lease_name": "a\nb"},
    {"retry_policy": None},
    {"retry_policy": "forever"},
    {"retry_policy": "one_shot", "attempts_max": 2},
    {"retry_policy": "deadline"},
    {"attempts_max": None},
    {"attempts_max": 0},
    {"attempts_max": -1},
    {"attempts_max": 2.5},
    {"attempts_max": "many"},
    {"attempts_max": 99_999_999_999},
    {"attempts_max": [1]},
    {"deadline_seconds": 0},
    {"deadline_seconds": -1},
    {"deadline_seconds": 315_360_001},
    {"deadline_seconds": "NaN"},
    {"deadline_seconds": "soon"},
    {"lease_seconds": None},
    {"lease_seconds": 0},
    {"lease_seconds": -30},
    {"lease_seconds": 86_401},
    {"lease_seconds": "NaN"},
    {"lease_seconds": 1e300},
    {"lease_seconds": "1e400"},
    {"call_timeout_seconds": None},
    {"call_timeout_seconds": 0},
    {"call_timeout_seconds": True},
    {"call_timeout_seconds": "Infinity"},
    {"quarantine_seconds": None},
    {"quarantine_seconds": 59},
    {"quarantine_seconds": 99, "call_timeout_seconds": 100},
    {"quarantine_seconds": "Infinity"},
    {"quarantine_seconds": "NaN"},
    {"key_window_seconds": 0},
    {"key_window_seconds": -1},
    {"key_window_seconds": 1e300},
    {"key_window_seconds": "NaN"},
]


def publish_raw(outbox, target, terms, operator="ada"):
    places = "leasehold.publish_contract(%s, %s::jsonb, %s)"
    return outbox.as_role("operator").execute(f"SELECT {places}", [target, terms, operator])


def test_changed_terms_are_a_new_version_and_unchanged_terms_are_not(outbox, database):
    assert outbox.publish() == 1
    assert outbox.publish() == 1
    assert outbox.publish(lease_seconds=30.0) == 1, "an explicit default is not a change"
    assert outbox.publish(lease_seconds=31) == 2
    assert outbox.publish(gateway={"url": "https://sms.example"}) == 3
    assert outbox.publish() == 4, "going back is a change too"
    assert outbox.publish("other") == 1
    rows = database.execute("SELECT target, version, published_by FROM leasehold.contracts")
    assert len(rows) == 5
    assert {row["published_by"] for row in rows} == {"test"}


def test_terms_without_a_gateway_are_refused_unless_the_gateway_is_null(outbox, database):
    outbox.publish(gateway={"kind": "http", "url": "https://sms.example.org"})
    terms = '{"scope": "item", "guarantee": "keyed"}'
    with refused("22023") as caught:
        publish_raw(outbox, "sms", terms)
    assert "name no gateway" in caught.value.diag.message_primary
    assert '"gateway": null' in caught.value.diag.message_hint
    assert len(database.execute("SELECT 1 FROM leasehold.contracts")) == 1
    publish_raw(outbox, "elsewhere", terms.replace("}", ', "gateway": null}'))
    [row] = database.execute("SELECT terms FROM leasehold.contracts WHERE target = 'elsewhere'")
    assert row["terms"]["gateway"] is None


@pytest.mark.parametrize("retry", [{"attempts_max": 3}, {"policy": "one_shot"}])
def test_retry_terms_that_the_database_would_not_read_are_refused(outbox, retry):
    """The intents would be tried 20 times."""
    with refused("22023") as caught:
        outbox.publish(retry={"first_seconds": 1} | retry)
    assert "attempts_max and retry_policy" in caught.value.diag.message_hint


def test_published_contract_contains_the_defaults(outbox, database):
    outbox.publish("item-target")
    outbox.publish("cluster-target", scope="cluster", guarantee="lookup", call_timeout_seconds=90)
    outbox.publish("stream-target", scope="stream", retry_policy="one_shot")
    outbox.publish("http-target", gateway={"kind": "http", "url": "https://sms.example.org"})
    columns = "scope, retry_policy, attempts_max, lease_seconds, quarantine_seconds, lease_name"
    rows = database.execute(f"SELECT target, {columns} FROM leasehold.contracts")
    assert {row.pop("target"): list(row.values()) for row in rows} == {
        "item-target": ["item", "max_attempts", 20, 30, 60, None],
        "cluster-target": ["cluster", "max_attempts", 20, 30, 120, "submission-manager-executor"],
        "stream-target": ["stream", "one_shot", 1, 30, 60, None],
        "http-target": ["item", "max_attempts", 20, 60, 120, None],
    }


def test_former_terms_are_returned_while_intents_are_pending_under_them(outbox):
    def former():
        rows = outbox.call("executor", "read_former_terms")
        return [tuple(row.values()) for row in rows]

    outbox.publish()
    outbox.publish("ledger", scope="cluster", lease_name="a")
    outbox.publish("ledger", scope="cluster", lease_name="a", note="the same place")
    ids = [*outbox.enqueue(1), *outbox.enqueue(1, "ledger")]
    assert former() == []
    outbox.publish("ledger", scope="cluster", lease_name="b")
    outbox.publish(scope="cluster")
    assert former() == [("ledger", 2, "cluster", "a"), ("sms", 1, "item", None)]
    for intent_id in ids:
        outbox.call("operator", "cancel_intent", intent_id, "ann", "a test")
    outbox.enqueue(1)
    outbox.enqueue(1, "ledger")
    assert former() == []


def test_concurrent_publishers_create_consecutive_versions(outbox, database):
    versions = race(
        database, 8, lambda caller, number: caller.publish(note=number % 4), role="operator"
    )
    newest = database.execute("SELECT version FROM leasehold.contracts ORDER BY version")
    assert [row["version"] for row in newest] == list(range(1, max(versions) + 1))
    assert outbox.publish(note="another") == max(versions) + 1


def test_each_impossible_term_is_refused(outbox, database):
    outcomes = [
        (terms, sqlstate_of(lambda terms=terms: outbox.publish(**terms))) for terms in REFUSED_TERMS
    ]
    assert [case for case in outcomes if case[1] != "22023"] == []
    assert database.execute("SELECT * FROM leasehold.contracts") == []


def test_secret_in_place_of_a_variable_name_is_refused_and_not_shown(outbox, database):
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    for gateway in (
        {"signing_secret_env": secret},
        {"secret_headers": {"X-Team": "TEAM", "Authorization": secret}},
    ):
        with refused("22023") as caught:
            outbox.publish(gateway={"kind": "http", "url": "https://sms.example"} | gateway)
        diagnostic = caught.value.diag
        told = (diagnostic.message_primary, diagnostic.message_detail, diagnostic.message_hint)
        assert secret not in str(told)
    assert database.execute("SELECT * FROM leasehold.contracts") == []
    names = {"signing_secret_env": "SIGNING_2", "secret_headers": {"Authorization": "TOKEN"}}
    assert outbox.publish(gateway=names) == 1


def test_more_attempts_than_the_ceiling_raise_their_own_error(outbox):
    with refused("P7004"):
        outbox.publish(attempts_max=21)
    assert outbox.publish(attempts_max=20) == 1


def test_malformed_contract_is_refused(outbox):
    good = '{"scope": "item", "guarantee": "keyed", "gateway": null}'
    bad_targets = [None, "", "UPPER", "a/b", "-a", "a b", "x" * 65, "ä"]
    bad_terms = [
        None,
        "[]",
        '{"gateway": null}',
        '"text"',
        "null",
        "{}",
        f'{{"note": "{"x" * 65536}"}}',
    ]
    cases = [(target, good, "ada") for target in bad_targets]
    cases += [("sms", terms, "ada") for terms in bad_terms]
    cases += [("sms", good, operator) for operator in (None, "", "x" * 129)]
    outcomes = [(case, sqlstate_of(lambda case=case: publish_raw(outbox, *case))) for case in cases]
    assert [case for case in outcomes if case[1] != "22023"] == []


def test_contracts_and_intents_cannot_be_rewritten_even_by_their_owner(outbox, database):
    outbox.publish()
    outbox.enqueue()
    for statement in (
        "UPDATE leasehold.contracts SET published_by = 'eve'",
        "DELETE FROM leasehold.contracts",
        "TRUNCATE leasehold.contracts",
        "UPDATE leasehold.intents SET payload = '1'",
        "UPDATE leasehold.intents SET intent_id = gen_random_uuid()",
    ):
        with refused("P0001"):
            database.owner_execute(statement)
