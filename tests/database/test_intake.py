"""Intake: an intent is committed when the call returns, and workers are notified afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from uuid import UUID

import psycopg
import pytest

from leasehold.domain.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidArgument,
    UnknownTarget,
)
from leasehold.domain.intent import JsonDocument, NewIntent
from leasehold.intake import notify
from leasehold.intake.intake import Intake
from leasehold.intake.notify import Notifications
from leasehold.store.postgres.ingest import PostgresIngest
from leasehold.store.postgres.store import PostgresStore

pytestmark = pytest.mark.one_server

KEY = "order-4711"
NESTED = reduce(lambda inner, _: [inner], range(5000), [])


@pytest.fixture(autouse=True)
def published(outbox):
    outbox.publish("sms")


@pytest.fixture
async def intake(database):
    async with Intake.connected(database.url_as("ingest")) as intake:
        yield intake


@pytest.fixture
def listener(database):
    connection = database.connect()
    connection.execute("LISTEN leasehold_due")
    return lambda seconds=0.5, most=None: [
        one.payload for one in connection.notifies(timeout=seconds, stop_after=most)
    ]


def new(**more):
    return NewIntent(**{"target": "sms", "payload": {"to": "+41"}} | more)


SPELLED = pytest.mark.parametrize(
    "given", [(new(),), ("sms", {"to": "+41"})], ids=["whole", "parts"]
)


async def test_single_intent_does_not_use_the_function_for_lists(database, intake, outbox):
    database.owner_execute(
        "REVOKE EXECUTE ON FUNCTION leasehold.enqueue_intents FROM leasehold_ingest"
    )
    assert outbox.status(await intake.enqueue("sms", {"to": "+41"})) == "pending"


@pytest.mark.parametrize(
    ("target", "payload", "error"),
    [
        ("nowhere", 1, UnknownTarget),
        ("sms\0", 1, InvalidArgument),
        ("sms", None, InvalidArgument),
        ("sms", object(), InvalidArgument),
        ("sms", float("nan"), InvalidArgument),
        ("sms", NESTED, InvalidArgument),
    ],
)
async def test_single_intent_is_rejected_with_the_message_of_a_list(intake, target, payload, error):
    with pytest.raises(error) as caught:
        await intake.enqueue(target, payload)
    intent = NewIntent(target=target, payload=payload)
    [result] = await intake.enqueue_many([intent])
    assert result.problem in str(caught.value)


async def test_intent_is_committed_when_the_call_returns(intake, outbox):
    intent_id = await intake.enqueue("sms", {"to": "+41"}, idempotency_key=KEY)
    assert outbox.status(intent_id) == "pending"
    assert await intake.enqueue(new(idempotency_key=KEY)) == intent_id


async def test_second_payload_under_a_key_is_a_conflict_that_names_the_first_intent(intake):
    first = await intake.enqueue("sms", {"to": "+41"}, idempotency_key=KEY)
    with pytest.raises(IdempotencyConflict, match=str(first)) as caught:
        await intake.enqueue("sms", {"to": "+49"}, idempotency_key=KEY)
    assert caught.value.intent_id == first
    with pytest.raises(IdempotencyConflict, match="another stream: use a new key"):
        await intake.enqueue("sms", {"to": "+41"}, idempotency_key=KEY, stream="bob")


@pytest.mark.parametrize(
    ("intent", "error", "told"),
    [
        (new(target="nowhere"), UnknownTarget, "no contract is published for target 'nowhere'"),
        (new(payload=None), InvalidArgument, "payload must be given"),
        (new(priority=9), InvalidArgument, "priority"),
        (new(payload={"x": "\0"}), InvalidArgument, "cannot store"),
        (new(metadata={"x": object()}), InvalidArgument, "metadata is not valid JSON"),
        (new(payload={1: 2}), InvalidArgument, "payload is not valid JSON: a key is of type int"),
        (new(metadata={1: 2}), InvalidArgument, "metadata is not valid JSON: a key is of type int"),
        (new(payload=[Decimal("NaN")]), InvalidArgument, "payload is not valid JSON: a Decimal"),
        (new(payload=None, body="text"), InvalidArgument, "body must be bytes"),
        (new(due_at="tomorrow"), InvalidArgument, "due_at must be a time with its time zone"),
        (new(payload=NESTED), InvalidArgument, "nested too deeply"),
    ],
)
async def test_rejected_intent_raises_an_error_that_says_why(intake, intent, error, told):
    with pytest.raises(error, match=told):
        await intake.enqueue(intent)


async def test_decimal_is_stored_with_every_digit(intake, database):
    amounts = {"a": Decimal("1.10"), "b": Decimal("0.12345678901234567890")}
    await intake.enqueue("sms", amounts, metadata=amounts, idempotency_key=KEY)
    await intake.enqueue_many([new(payload=amounts, metadata=amounts)])
    rows = database.execute("SELECT payload::text, metadata::text FROM leasehold.intents")
    exact = '{"a": 1.10, "b": 0.12345678901234567890}'
    assert [tuple(row.values()) for row in rows] == [(exact, exact)] * 2


async def test_concurrent_callers_with_the_same_key_get_one_intent(intake, database):
    found = await asyncio.gather(*[intake.enqueue(new(idempotency_key=KEY)) for _ in range(20)])
    assert len(set(found)) == 1
    assert len(database.execute("SELECT intent_id FROM leasehold.intents")) == 1


async def test_large_list_is_enqueued_in_several_calls(intake, database):
    given = (new(idempotency_key=str(number)) for number in range(12_500))
    answers = await intake.enqueue_many(given)
    assert [one.ordinal for one in answers] == list(range(1, 12_501))
    assert {one.verdict for one in answers} == {"accepted"}
    [row] = database.execute("SELECT count(*) AS n FROM leasehold.intents")
    assert row["n"] == 12_500


async def test_one_unreadable_value_does_not_fail_its_neighbours(intake):
    answers = await intake.enqueue_many(
        [new(), new(payload={"x": "\0"}), new(target="nowhere"), new(priority="high"), new()],
        batch_size=4,
    )
    assert [(one.ordinal, one.verdict.value) for one in answers] == [
        (1, "accepted"),
        (2, "invalid"),
        (3, "unknown_target"),
        (4, "invalid"),
        (5, "accepted"),
    ]
    assert answers[1].problem is not None
    assert "payload" in answers[1].problem


async def test_batch_of_unreadable_values_has_a_verdict_for_each(intake):
    answers = await intake.enqueue_many([new(payload={"x": "\0"})] * 2)
    assert [one.verdict.value for one in answers] == ["invalid"] * 2


async def test_empty_list_makes_no_call(intake):
    assert await intake.enqueue_many([]) == []


async def test_absurd_batch_size_is_refused(intake):
    with pytest.raises(InvalidArgument, match="batch_size is 0"):
        await intake.enqueue_many([new()], batch_size=0)


async def test_workers_are_notified_after_the_commit(intake, listener, database):
    await intake.enqueue(new())
    assert await asyncio.to_thread(listener, 5, 1) == ["sms"]
    assert len(database.execute("SELECT intent_id FROM leasehold.outbox_pending")) == 1


@SPELLED
async def test_single_enqueue_carries_its_notification(intake, listener, monkeypatch, given):
    async def lost(*_):
        raise DatabaseUnavailable("no separate notification is needed")

    monkeypatch.setattr(PostgresIngest, "notify_targets", lost)
    await intake.enqueue(*given)
    assert await asyncio.to_thread(listener, 5, 1) == ["sms"]


@pytest.mark.parametrize(
    "given",
    [
        {"idempotency_key": KEY},
        {"idempotency_key": KEY, "key_scope": "all", "priority": 0},
        {"metadata": {"by": "shop"}, "deadline_seconds": 3600},
        {"metadata": JsonDocument(b'{"by": 1.00}'), "payload": JsonDocument(b'{"to": 1.00}')},
        {"payload": None, "body": b"\x00raw", "content_type": "application/octet-stream"},
        {"trace_context": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    ],
)
async def test_intent_is_stored_the_same_alone_with_a_notification_and_in_a_list(
    database, monkeypatch, given
):
    written = (
        "SELECT i.idempotency_key, i.is_key_of_all_targets, i.payload::text, i.body,"
        " i.content_type, i.payload_hash, i.metadata::text, i.trace_context,"
        " i.deadline_at - i.created_at AS time, p.priority, p.due_at = i.created_at AS is_due"
        " FROM leasehold.intents i JOIN leasehold.outbox_pending p USING (intent_id)"
        " WHERE i.intent_id = %s"
    )

    async def with_notify(intake):
        monkeypatch.setattr(Notifications, "may_be_inline", lambda _: True)
        return await intake.enqueue(new(**given))

    async def without_notify(intake):
        monkeypatch.setattr(Notifications, "may_be_inline", lambda _: False)
        return await intake.enqueue(new(**given))

    async def in_a_list(intake):
        [result] = await intake.enqueue_many([new(**given)])
        return result.intent_id

    rows = []
    for enqueue in (with_notify, without_notify, in_a_list):
        async with Intake.connected(database.url_as("ingest")) as intake:
            intent_id = await enqueue(intake)
        rows += database.owner_execute(written, [intent_id])
        database.owner_execute("TRUNCATE leasehold.intents, leasehold.outbox_pending")
    assert rows[0] == rows[1] == rows[2]


async def test_rapid_enqueues_do_not_wait_for_the_lock_of_notify(intake, listener, monkeypatch):
    inline = []
    enqueue_intent = PostgresIngest.enqueue_intent

    async def enqueue(self, one, *, wakes):
        inline.append(wakes)
        return await enqueue_intent(self, one, wakes=wakes)

    monkeypatch.setattr(PostgresIngest, "enqueue_intent", enqueue)
    monkeypatch.setattr(notify, "INLINE_SECONDS", 3600)
    for _ in range(5):
        await intake.enqueue("sms", {"to": "+41"})
    assert inline == [True, False, False, False, False]
    notified = await asyncio.to_thread(listener)
    assert 2 <= len(notified) <= 5


async def test_enqueue_succeeds_without_the_right_to_notify(database, intake, outbox, listener):
    database.owner_execute(
        "REVOKE EXECUTE ON FUNCTION leasehold.notify_targets FROM leasehold_ingest"
    )
    with pytest.raises(UnknownTarget):
        await intake.enqueue(new(target="fax"))
    assert outbox.status(await intake.enqueue("sms", {"to": "+41"})) == "pending"
    assert await asyncio.to_thread(listener) == []


async def test_pause_after_a_notification_grows_with_its_intents(database):
    class Counted(PostgresStore):
        calls = 0

        async def notify_targets(self, _):
            self.calls += 1

    async def notified(intents):
        store = Counted(database.url_as("ingest"))
        notifications = Notifications(store)
        for _ in range(20):
            notifications.add(["sms"], intents)
            await asyncio.sleep(notify.PAUSE_SECONDS)
        await notifications.close()
        return store.calls

    assert await notified(100) < await notified(1)


@SPELLED
async def test_many_enqueues_send_few_notifications(database, listener, given):
    async with Intake.connected(database.url_as("ingest")) as intake:
        await asyncio.gather(*[intake.enqueue(*given) for _ in range(200)])
    notified = await asyncio.to_thread(listener)
    assert 1 <= len(notified) < 100
    assert set(notified) == {"sms"}


async def test_delayed_duplicate_and_invalid_intents_send_no_notification(intake, listener):
    await intake.enqueue(new(idempotency_key=KEY, delay_seconds=3600))
    await intake.enqueue(new(idempotency_key=KEY, delay_seconds=3600))
    await intake.enqueue_many([new(priority=9)])
    assert await asyncio.to_thread(listener) == []


@SPELLED
async def test_intake_without_notify_sends_no_notification(database, listener, given):
    async with Intake.connected(database.url_as("ingest"), notify=False) as intake:
        await intake.enqueue(*given)
    assert await asyncio.to_thread(listener) == []


async def test_lost_notification_does_not_fail_the_enqueue(database, intake, outbox):
    database.owner_execute(
        "REVOKE EXECUTE ON FUNCTION leasehold.notify_targets FROM leasehold_ingest"
    )
    intent_id = await intake.enqueue(new())
    await asyncio.sleep(0.05)
    assert outbox.status(await intake.enqueue(new())) == "pending"
    assert outbox.status(intent_id) == "pending"


async def test_number_of_targets_to_notify_is_bounded(database, listener):
    async with PostgresStore(database.url_as("ingest")) as store:
        notifications = Notifications(store)
        notifications.add(f"target-{number}" for number in range(5000))
        await notifications.close()
    assert len(await asyncio.to_thread(listener, 1.0)) == 1000


async def test_intake_shares_a_store_and_leaves_it_open(database, outbox):
    async with PostgresStore(database.url_as("ingest")) as store:
        async with Intake(store) as intake:
            await intake.enqueue(new())
        async with Intake(store) as intake:
            assert outbox.status(await intake.enqueue(new())) == "pending"


async def test_unreachable_database_is_reported(database):
    given = psycopg.conninfo.conninfo_to_dict(database.url_as("ingest")) | {"port": 1}
    with pytest.raises(DatabaseUnavailable):
        async with Intake.connected(psycopg.conninfo.make_conninfo("", **given)):
            pass


def test_ids_are_plain_uuids(database):
    async def enqueue():
        async with Intake.connected(database.url_as("ingest")) as intake:
            return await intake.enqueue(replace(new(), idempotency_key=KEY))

    assert type(asyncio.run(enqueue())) is UUID
