"""The text of a payload counts: what is too large is refused with its size, however it comes."""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal

import psycopg
import pytest

from leasehold.domain.errors import ContentTooLarge
from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.domain.json_text import overlong_numbers
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.group_commit import GroupCommit
from leasehold.intake.intake import Intake
from leasehold.intake.transactional import enqueue_in, enqueue_many_in
from leasehold.store.postgres.store import PostgresStore

pytestmark = pytest.mark.one_server

LIMIT = 1024 * 1024
# 390 kB that PostgreSQL writes as 20 MB.
EXPANDING = "[" + ",".join(["1e308"] * 65_000) + "]"
EXPANDED_BYTES = 65_000 * 311
# 175 kB that PostgreSQL stores in 1 MB, and writes as 262 kB.
SMALL_VALUES = "[" + ",".join(["1"] * 87_500) + "]"
LARGEST = json.dumps("x" * (LIMIT - 2))
ENQUEUE = "SELECT leasehold.enqueue_intent('sms', %s::jsonb)"


@pytest.fixture(autouse=True)
def published(outbox):
    outbox.publish("sms")


def pending_bytes(database):
    rows = database.execute("SELECT content_bytes FROM leasehold.outbox_pending ORDER BY intent_id")
    return [row["content_bytes"] for row in rows]


def document(text):
    return JsonDocument(text.encode())


@pytest.mark.parametrize("enqueued", ["alone", "in a list", "with a key"])
def test_sql_refuses_expanding_payload_with_its_size_and_limit(database, outbox, enqueued):
    key = {"idempotency_key": "k"} if enqueued == "with a key" else {}
    others = [] if enqueued == "alone" else [{"target": "sms", "payload": 1}]
    entries = [{"target": "sms", "payload": None, **key}, *others]
    text = json.dumps(entries).replace("null", EXPANDING)
    refused, *accepted = outbox.as_role("ingest").execute(
        "SELECT * FROM leasehold.enqueue_intents(%s::jsonb) ORDER BY ordinal", [text]
    )
    assert (refused["verdict"], refused["intent_id"]) == ("too_large", None)
    assert refused["problem"] == (
        f"payload has {EXPANDED_BYTES} bytes as text; the limit is {LIMIT}"
    )
    assert [row["verdict"] for row in accepted] == ["accepted"] * len(others)
    assert len(pending_bytes(database)) == len(others)


def test_enqueue_intent_raises_its_own_error_for_what_is_too_large(database):
    with pytest.raises(psycopg.Error, match=f"has {EXPANDED_BYTES} bytes") as raised:
        database.connect("ingest").execute(ENQUEUE, [EXPANDING])
    assert raised.value.sqlstate == "P7007"


@pytest.mark.parametrize("text", [SMALL_VALUES, LARGEST], ids=["small values", "largest"])
def test_payload_is_accepted_by_its_text_and_not_by_what_it_takes_in_a_table(database, text):
    database.connect("ingest").execute(ENQUEUE, [text])
    [size] = pending_bytes(database)
    assert size == len(json.dumps(json.loads(text))) <= LIMIT


def test_one_byte_more_than_the_limit_is_refused(database):
    with pytest.raises(psycopg.Error, match=f"has {LIMIT + 1} bytes"):
        database.connect("ingest").execute(ENQUEUE, [json.dumps("x" * (LIMIT - 1))])


def test_size_of_body_and_metadata_is_kept_for_claims(database, outbox):
    body = {"body": b64encode(b"b" * 999).decode(), "content_type": "a/b", "metadata": {"m": "é"}}
    outbox.enqueue_entries([{"target": "sms", **body}, {"target": "sms", "payload": [1, 2]}])
    assert pending_bytes(database) == [999 + len('{"m": "é"}'.encode()), len("[1, 2]")]


def test_body_over_the_limit_is_refused_with_its_size(outbox):
    body = b64encode(b"b" * (LIMIT + 1)).decode()
    [row] = outbox.enqueue_entries([{"target": "sms", "body": body, "content_type": "a/b"}])
    assert row["verdict"] == "too_large"
    assert row["problem"] == f"body has {LIMIT + 1} bytes; the limit is {LIMIT}"


def test_redriven_intent_keeps_its_size(database, outbox):
    outbox.enqueue_entries([{"target": "sms", "payload": "x" * 500, "metadata": {"a": 1}}])
    [size] = pending_bytes(database)
    [claim] = outbox.claim()
    outbox.complete([claim], "FAILED")
    [row] = outbox.as_role("operator").execute(
        "SELECT * FROM leasehold.redrive_intents(%s, 'ann', 'again')", [[claim["intent_id"]]]
    )
    assert row["verdict"] == "redriven"
    assert pending_bytes(database) == [size]


async def test_intake_raises_the_size_and_the_limit(database):
    floats = [1e308] * 65_000
    async with Intake.connected(database.url_as("ingest")) as intake:
        with pytest.raises(ContentTooLarge) as raised:
            await intake.enqueue("sms", floats)
        assert (raised.value.size_bytes, raised.value.limit_bytes) == (EXPANDED_BYTES, LIMIT)
        results = await intake.enqueue_many(
            [NewIntent(target="sms", payload=one) for one in (1, floats, [Decimal("1e308")])]
        )
    assert [one.verdict for one in results] == ["accepted", "too_large", "accepted"]


async def test_group_commit_refuses_what_is_too_large_and_takes_what_came_with_it(database):
    sent = [document(EXPANDING), 1, document(SMALL_VALUES)]
    async with PostgresStore(database.url_as("ingest")) as store:
        group_commit = GroupCommit(store)
        results = await group_commit.enqueue_many(
            [NewIntent(target="sms", payload=one) for one in sent]
        )
        await group_commit.close()
    assert [one.verdict for one in results] == ["too_large", "accepted", "accepted"]
    assert len(pending_bytes(database)) == 2


def test_transactional_enqueue_refuses_it_and_the_transaction_goes_on(database):
    connection = database.connect("ingest", autocommit=False)
    with pytest.raises(ContentTooLarge) as raised:
        enqueue_in(connection, "sms", document(EXPANDING))
    assert (raised.value.size_bytes, raised.value.limit_bytes) == (EXPANDED_BYTES, LIMIT)
    [result, _] = enqueue_many_in(
        connection,
        [NewIntent(target="sms", payload=one) for one in (document(EXPANDING), 1)],
    )
    connection.commit()
    assert result.verdict is EnqueueVerdict.TOO_LARGE
    assert len(pending_bytes(database)) == 1


@pytest.mark.parametrize(
    "raw",
    [
        "[" + ",".join(["1" * 60] * 16_000) + "]",
        json.dumps("1e308," * 10_000),
        json.dumps('\\"1e308,' * 10_000),
        json.dumps(["1e308"] * 10_000),
        "[" + ",".join(["0e308"] * 10_000) + "]",
        "[" + ",".join(["1e308"] * 3_300) + "]",
    ],
)
def test_cheap_bound_never_refuses_what_the_database_accepts(raw, database):
    assert overlong_numbers(raw.encode()) == 0
    database.connect("ingest").execute(ENQUEUE, [raw])


@pytest.mark.parametrize("number", ["1e308", "-2.5E+300", "1e-300", "7.25e-99"])
def test_cheap_bound_is_at_most_the_size_of_the_text(number, database):
    raw = "[" + ",".join([number] * 20_000) + "]"
    [row] = database.execute("SELECT octet_length(%s::jsonb::text) AS size", [raw])
    assert LIMIT < overlong_numbers(raw.encode()) <= row["size"]
