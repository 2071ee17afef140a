"""Every example of docs/how-to/enqueue.md works as printed."""

from __future__ import annotations

import asyncio
import re
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.support.caller_transactions import url_of, use_django

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue.md"
PYTHON = dict(
    re.findall(r"^```python ([\w-]+)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
)
SQL = re.findall(r"^```sql\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
PAY_EXAMPLES = [name for name, text in PYTHON.items() if "def pay(" in text]


@pytest.fixture
def orders(database, outbox):
    """A table of the application, next to ours."""
    outbox.publish("sms")
    database.execute("GRANT USAGE ON SCHEMA public TO test_ingest")
    database.execute("CREATE TABLE public.orders (id integer, state text)")
    database.execute("INSERT INTO orders VALUES (1, 'new')")
    database.execute("GRANT ALL ON orders TO test_ingest")
    return lambda: database.execute("SELECT state FROM orders")[0]["state"]


def function_of(name):
    namespace: dict[str, object] = {}
    exec(compile(PYTHON[name], f"{DOCUMENT.name}:{name}", "exec"), namespace)
    [function] = [
        one for key, one in namespace.items() if key in {"pay", "greet", "greet_all", "enqueue"}
    ]
    return function


def run(name, database, *arguments):
    function = function_of(name)
    address = database.url_as("ingest")
    if name == "django":
        use_django(address)
    else:
        arguments = (url_of(address), *arguments)
    answer = function(*arguments)
    return asyncio.run(answer) if iscoroutinefunction(function) else answer


def intents(database):
    return database.execute("SELECT idempotency_key, payload FROM leasehold.intents")


def test_page_has_an_example_for_each_driver():
    assert set(PAY_EXAMPLES) == {
        "psycopg",
        "psycopg-async",
        "sqlalchemy",
        "sqlalchemy-async",
        "django",
        "asyncpg",
    }


@pytest.mark.parametrize("name", PAY_EXAMPLES)
def test_order_and_intent_are_committed_together(name, database, orders):
    run(name, database, 1)
    if name == "django":
        from django.db import connection

        connection.close()
    assert orders() == "paid"
    assert intents(database) == [{"idempotency_key": "paid-1", "payload": {"text": "paid"}}]


INTAKE_EXAMPLES = [name for name in PYTHON if name not in (*PAY_EXAMPLES, "options")]


@pytest.mark.parametrize("name", INTAKE_EXAMPLES)
def test_intake_example_enqueues(name, database, outbox):
    outbox.publish("sms")
    arguments = [["Ada", "Grace"]] if name == "intake-many" else []
    answer = run(name, database, *arguments)
    found = {row["idempotency_key"] for row in intents(database)}
    assert found == ({"greet-Ada", "greet-Grace"} if arguments else {"greeting-1"})
    assert answer == ["accepted"] * 2 if arguments else answer is not None


def test_plain_sql_enqueues_in_the_transaction_and_finds_the_duplicate(database, orders):
    transaction, batch = SQL
    connection = database.connect("ingest")
    connection.execute(transaction)
    assert orders() == "paid"
    answers = connection.execute(batch).fetchall()
    assert [row["verdict"] for row in answers] == ["duplicate", "accepted"]


def test_example_of_options_enqueues_into_a_stream_later_and_as_bytes(database, outbox):
    outbox.publish("bookings", scope="stream")
    outbox.publish("sms")
    outbox.publish("batches")
    with database.connect("ingest") as connection:
        function_of("options")(connection, b"\x00signed", "0a" * 64)
    rows = database.execute(
        "SELECT target, stream, body, metadata FROM leasehold.intents ORDER BY 1"
    )
    assert [(row["target"], row["stream"]) for row in rows] == [
        ("batches", None),
        ("bookings", "account-7"),
        ("sms", None),
    ]
    assert (rows[0]["body"], rows[0]["metadata"]) == (b"\x00signed", {"batch_id": "0a" * 64})
