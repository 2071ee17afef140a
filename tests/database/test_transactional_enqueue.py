"""Transactional enqueue: the intent exists after the commit, and not after a rollback.

Every driver runs the same tests, as a login that may enqueue and nothing else.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest

from leasehold.domain.errors import (
    IdempotencyConflict,
    InvalidArgument,
    LeaseholdError,
    UnknownTarget,
)
from leasehold.domain.intent import NewIntent
from leasehold.domain.verdict import EnqueueVerdict
from leasehold.intake.transactional import (
    aenqueue_in,
    aenqueue_many_in,
    enqueue_in,
    enqueue_many_in,
)
from tests.support import caller_transactions as transactions
from tests.support.caller_transactions import ASYNC, SYNC

pytestmark = pytest.mark.one_server

KEY = "order-4711"
PAYLOAD = {"text": "Grüezi :name %s $1 '' \\ \\u0000", "amount": 1.5}


class Rollback(Exception):
    """Raised in a transaction to roll it back, as an error of the application would."""


class Way:
    """The transaction of one driver, with helpers to enqueue in it."""

    def __init__(self, transaction, database):
        self.transaction = transaction
        self.address = database.url_as("ingest")

    def enqueue(self, *intents, rollback=False):
        """Enqueue in one transaction; return the id or the error of each."""
        return self._run(enqueue_in, aenqueue_in, intents, rollback)

    def enqueue_many(self, intents):
        """Enqueue in one call."""
        [answers] = self._run(enqueue_many_in, aenqueue_many_in, [intents], False)
        return answers

    def _run(self, function, async_function, arguments, rollback):
        if self.transaction in ASYNC:
            return asyncio.run(self._run_async(async_function, arguments, rollback))
        answers = []
        with suppress(Rollback), self.transaction(self.address) as connection:
            for argument in arguments:
                try:
                    answers.append(function(connection, argument))
                except LeaseholdError as error:
                    answers.append(error)
            if rollback:
                raise Rollback
        return answers

    async def _run_async(self, function, arguments, rollback):
        answers = []
        with suppress(Rollback):
            async with self.transaction(self.address) as connection:
                for argument in arguments:
                    try:
                        answers.append(await function(connection, argument))
                    except LeaseholdError as error:
                        answers.append(error)
                if rollback:
                    raise Rollback
        return answers


@pytest.fixture(params=[*SYNC, *ASYNC], ids=lambda one: one.__name__)
def way(request, database, outbox):
    outbox.publish("sms")
    return Way(request.param, database)


@pytest.fixture
def count(database):
    return lambda: database.execute("SELECT count(*) AS n FROM leasehold.intents")[0]["n"]


def new(payload=PAYLOAD, **more):
    return NewIntent(target="sms", payload=payload, **more)


def test_intent_exists_after_the_callers_commit(way, database):
    [intent_id] = way.enqueue(new(idempotency_key=KEY))
    assert type(intent_id) is UUID
    [row] = database.execute("SELECT * FROM leasehold.intents")
    assert (row["intent_id"], row["payload"]) == (intent_id, PAYLOAD)
    [pending] = database.execute("SELECT intent_id FROM leasehold.outbox_pending")
    assert pending["intent_id"] == intent_id


def test_intent_does_not_exist_after_the_callers_rollback(way, database, count):
    [intent_id] = way.enqueue(new(idempotency_key=KEY), rollback=True)
    assert type(intent_id) is UUID
    assert count() == 0
    assert database.execute("SELECT intent_id FROM leasehold.outbox_pending") == []


def test_conflict_does_not_end_the_transaction(way, outbox, count):
    [first] = outbox.enqueue(1, idempotency_key=KEY)
    conflict, stream, unknown, refused, accepted = way.enqueue(
        new(idempotency_key=KEY),
        new(idempotency_key=KEY, stream="bob"),
        NewIntent(target="nowhere", payload={}),
        new(priority=9),
        new(),
    )
    assert isinstance(conflict, IdempotencyConflict)
    assert conflict.intent_id == first
    assert isinstance(stream, IdempotencyConflict)
    assert "another payload and stream: use a new key" in str(stream)
    assert isinstance(unknown, UnknownTarget)
    assert unknown.target == "nowhere"
    assert isinstance(refused, InvalidArgument)
    assert "priority" in str(refused)
    assert outbox.status(accepted) == "pending"
    assert count() == 2


def test_same_key_and_payload_is_one_intent_within_a_transaction(way, count):
    first, again = way.enqueue(new(idempotency_key=KEY), new(idempotency_key=KEY))
    assert again == first
    assert count() == 1


def test_unsendable_value_does_not_end_the_transaction(way, count):
    answers = way.enqueue(
        new({"text": "\0"}),
        new({"text": "\ud800"}),
        new({"number": float("nan")}),
        new(priority="high"),
        new(delay_seconds=10**400),
        new(due_at=datetime(2030, 1, 1)),  # noqa: DTZ001 (that is what is refused)
        new(stream="a\0b"),
        new(),
    )
    assert [type(one) for one in answers] == [InvalidArgument] * 7 + [UUID]
    assert count() == 1


def test_each_intent_of_a_list_gets_its_verdict_in_order(way, count):
    answers = way.enqueue_many(
        [new(idempotency_key=KEY), new({"x": "\0"}), new({}, idempotency_key=KEY), new(priority=8)]
    )
    assert [one.ordinal for one in answers] == [1, 2, 3, 4]
    assert [one.verdict for one in answers] == [
        EnqueueVerdict.ACCEPTED,
        EnqueueVerdict.INVALID,
        EnqueueVerdict.CONFLICT,
        EnqueueVerdict.INVALID,
    ]
    assert count() == 1


def test_empty_list_runs_nothing_and_too_long_a_list_is_rejected(way, count):
    assert way.enqueue_many([]) == []
    assert isinstance(way.enqueue_many([new()] * 10_001), InvalidArgument)
    assert count() == 0


def test_every_field_of_an_intent_is_stored(way, database):
    due_at, deadline_at = datetime(2031, 1, 1, tzinfo=UTC), datetime(2032, 1, 1, tzinfo=UTC)
    way.enqueue(
        NewIntent(
            target="sms",
            body=b"\x00\xff",
            content_type="application/octet-stream",
            idempotency_key=KEY,
            stream="account-1",
            priority=3,
            due_at=due_at,
            deadline_at=deadline_at,
            metadata={"order": 4711},
            trace_context="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        )
    )
    [row] = database.execute(
        "SELECT * FROM leasehold.intents JOIN leasehold.outbox_pending USING (intent_id)"
    )
    assert (bytes(row["body"]), row["content_type"]) == (b"\x00\xff", "application/octet-stream")
    assert (row["idempotency_key"], row["priority"], row["due_at"]) == (KEY, 3, due_at)
    assert (row["metadata"], row["trace_context"][:3]) == ({"order": 4711}, "00-")


def test_decimal_keeps_every_digit_and_a_key_that_is_not_text_is_refused(way, database):
    [stored, refused] = way.enqueue(
        NewIntent(target="sms", payload={"amount": Decimal("1.10")}),
        NewIntent(target="sms", payload={1: 2}),
    )
    assert isinstance(stored, UUID)
    assert isinstance(refused, InvalidArgument)
    assert "payload is not valid JSON: a key is of type int" in str(refused)
    [row] = database.execute("SELECT payload::text FROM leasehold.intents")
    assert row["payload"] == '{"amount": 1.10}'


def test_wrong_kind_of_connection_names_the_right_function(database):
    connection = database.connect("ingest")
    with pytest.raises(InvalidArgument, match=r"not async: use enqueue_in"):
        asyncio.run(aenqueue_in(connection, "sms", {}))
    with pytest.raises(InvalidArgument, match=r"is async: use await aenqueue_in"):
        enqueue_in(object.__new__(psycopg.AsyncConnection), "sms", {})
    with pytest.raises(InvalidArgument, match=r"builtins\.object is not a connection"):
        enqueue_in(object(), "sms", {})


def test_whole_intent_and_options_together_are_refused(database):
    with pytest.raises(InvalidArgument, match="either a NewIntent, or a target"):
        enqueue_in(database.connect("ingest"), new(), idempotency_key=KEY)


def test_missing_role_raises_the_error_of_the_driver(database, outbox):
    outbox.publish("sms")
    with (
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        transactions.of_psycopg(database.url_as("readonly")) as connection,
    ):
        enqueue_in(connection, "sms", {})
