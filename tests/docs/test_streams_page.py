"""The examples of docs/how-to/streams.md work as printed, and its defaults are the real ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from leasehold.domain.timing import Timings
from tests.docs.test_examples import blocks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "streams.md"
ENQUEUE, PAUSED, HELD = blocks(PAGE, "sql")


@pytest.fixture
def bookings(outbox):
    [text] = blocks(PAGE, "toml")
    assert outbox.publish("bookings", **tomllib.loads(text)["targets"]["bookings"]) == 1
    return outbox


def claim(outbox):
    return outbox.call("executor", "claim_streams", 10, "worker-1", 30, 150, ["bookings"])


async def test_intents_of_the_page_follow_one_another_in_one_stream(database, bookings):
    [example] = blocks(PAGE, "python enqueue")
    names: dict[str, object] = {}
    exec(example, names)
    await names["book"](database.url_as("ingest"))
    database.connect("ingest").execute(ENQUEUE)
    rows = database.execute("SELECT stream, payload FROM leasehold.intents ORDER BY stream_seq")
    assert [row["payload"]["amount"] for row in rows] == ["12.50", "-3.00", "7.00"]
    assert {row["stream"] for row in rows} == {"account-7"}
    [head] = claim(bookings)
    assert head["payload"] == {"amount": "12.50"}


def test_query_of_the_page_names_the_holder_of_each_stream(database, bookings):
    database.connect("ingest").execute(ENQUEUE)
    assert database.connect("readonly").execute(HELD).fetchall() == []
    claim(bookings)
    [row] = database.connect("readonly").execute(HELD).fetchall()
    assert (row["stream"], row["holder_id"], row["lease_epoch"]) == ("account-7", "worker-1", 1)
    assert (row["grace_expires_at"] - row["expires_at"]).total_seconds() == 150


def test_query_of_the_page_names_a_stream_whose_head_has_failed(database, bookings):
    database.connect("ingest").execute(ENQUEUE)
    [head] = claim(bookings)
    fence = ("worker-1", [head["lease_name"]], [head["lease_epoch"]])
    bookings.call("executor", "begin_stream_attempts", *fence, [head["intent_id"]])
    failed = [{"intent_id": str(head["intent_id"]), "state": "FAILED"}]
    bookings.call("executor", "record_stream_attempts", *fence, failed)
    [row] = database.connect("readonly").execute(PAUSED).fetchall()
    assert (row["stream"], row["paused_for"]) == ("account-7", head["intent_id"])
    assert (row["paused_until"] - row["blocked_since"]).total_seconds() == 60
    assert [one["paused_by"] for one in row["pauses"]] == ["on_failure"]


def test_timings_of_the_page_are_the_defaults():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--stream-")]
    assert len(rows) == 3
    for line in rows:
        option, variable, default = (cell.strip(" `") for cell in line.split("|")[1:4])
        name = variable.removeprefix("LEASEHOLD_").lower()
        assert option == f"--{name.replace('_', '-')}"
        assert getattr(Timings(), name) == float(default)
