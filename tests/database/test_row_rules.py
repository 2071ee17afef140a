"""Invalid rows are refused with the name of their rule, even for the owner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leasehold.store.postgres
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

FUNCTIONS = Path(leasehold.store.postgres.__file__).parent / "sql" / "functions"

# Changes that make a valid row invalid.
OF_INTENTS = {
    "payload_or_body": [{"payload": None}, {"body": b"a", "content_type": "text/plain"}],
    "body_names_its_type": [{"content_type": "text/plain"}, {"payload": None, "body": b"a"}],
    "key_bounded": [{"idempotency_key": ""}, {"idempotency_key": "a" * 256}],
    "stream_bounded": [{"stream": ""}, {"stream": "a" * 256}],
    "body_bounded": [{"payload": None, "content_type": "a", "body": b"a" * 1048577}],
    "hash_is_sha256": [{"payload_hash": b"a" * 31}],
}
OF_PENDING = {
    "lease_all_or_none": ["claimed_by = 'worker-1'", "lease_expires_at = 'infinity'"],
    "scope_known": ["scope = 'other'"],
    "only_items_lack_a_lease": ["lease_name = 'a'", "scope = 'cluster'"],
    "claims_are_items": [
        """scope = 'cluster', lease_name = 'a', claimed_by = 'worker-1',
           lease_token = gen_random_uuid(), lease_expires_at = 'infinity', lease_seconds = 30""",
    ],
    "stream_is_ordered": [
        "scope = 'stream', lease_name = 'a'",
        "scope = 'stream', lease_name = 'a', stream = 'b'",
    ],
    "begun_under_epoch": ["begun_epoch = 1"],
    "priority_level": ["priority = -1", "priority = 4"],
    "attempt_count_natural": ["attempt_count = -1"],
}
OF_ATTEMPTS = {
    "number_positive": [{"attempt_no": 0}],
    "state_known": [{"state": "DONE"}],
    "retry_ceiling": [
        {"attempt_no": 21, "state": "RETRYABLE"},
        {"attempt_no": 21, "state": "ZOMBIE_REQUEUE"},
    ],
    "token_or_epoch": [
        {"lease_token": "00000000-0000-0000-0000-000000000001", "lease_epoch": 1},
    ],
    "time_runs_forward": [{"started_at": "2031-01-02", "finished_at": "2031-01-01"}],
    "reason_bounded": [{"reason": "a" * 65}],
    "code_bounded": [{"code": "a" * 65}],
    "reference_bounded": [{"reference": "a" * 256}],
    "detail_bounded": [{"detail": "a" * 2001}],
}
INTENT = {
    "intent_id": "00000000-0000-7000-8000-000000000001",
    "submission_key": "00000000-0000-7000-8000-000000000001",
    "target": "sms",
    "contract_version": 1,
    "payload": "{}",
    "created_at": "2031-01-01",
}
ATTEMPT = {
    "intent_id": "00000000-0000-7000-8000-000000000001",
    "attempt_no": 1,
    "state": "RETRYABLE",
    "holder": "by hand",
    "started_at": "2031-01-01",
    "finished_at": "2031-01-01",
}


def rules(of):
    return [(rule, change) for rule, changes in of.items() for change in changes]


def insert(outbox, table, row):
    outbox.database.owner_execute(
        f"INSERT INTO leasehold.{table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
        list(row.values()),
    )


@pytest.mark.parametrize(
    ("table", "sound", "rule", "change"),
    [("intents", INTENT, *one) for one in rules(OF_INTENTS)]
    + [("outbox_attempts", ATTEMPT, *one) for one in rules(OF_ATTEMPTS)],
)
def test_new_row_that_breaks_a_rule_is_refused_under_its_name(outbox, table, sound, rule, change):
    with refused("23514") as caught:
        insert(outbox, table, sound | change)
    assert caught.value.diag.constraint_name == f"{table}_{rule}"
    assert (caught.value.diag.schema_name, caught.value.diag.table_name) == ("leasehold", table)
    insert(outbox, table, sound)


@pytest.mark.parametrize(("rule", "change"), rules(OF_PENDING))
def test_pending_row_that_breaks_a_rule_is_refused_under_its_name(outbox, rule, change):
    outbox.publish()
    [intent] = outbox.enqueue()
    with refused("23514") as caught:
        outbox.database.owner_execute(
            f"UPDATE leasehold.outbox_pending SET {change} WHERE intent_id = %s", [intent]
        )
    assert caught.value.diag.constraint_name == f"outbox_pending_{rule}"


@pytest.mark.parametrize(
    ("function", "prefix", "tried"),
    [
        ("check_intent_row", "intents", OF_INTENTS),
        ("check_pending_row", "outbox_pending", OF_PENDING),
        ("check_attempt_row", "outbox_attempts", OF_ATTEMPTS),
    ],
)
def test_every_rule_is_covered_above(function, prefix, tried):
    text = (FUNCTIONS / f"{function}.sql").read_text()
    assert re.findall(rf"'{prefix}_(\w+)'", text) == list(tried)
