"""The examples of docs/how-to/cluster.md work as printed, and its defaults are the real ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import psycopg
import pytest

from leasehold.domain.timing import Timings
from tests.docs.test_examples import blocks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md"


async def test_own_code_runs_as_leader_under_a_new_epoch_each_time(database):
    [example] = blocks(PAGE, "python leader")
    names: dict[str, object] = {}
    exec(example, names)
    epochs = [await names["report_once"](database.url_as("executor")) for _ in range(2)]
    assert epochs == [1, 2]


def test_transaction_of_a_former_leader_is_refused(database):
    [statement] = blocks(PAGE, "sql")
    with pytest.raises(psycopg.DatabaseError) as refusal:
        database.connect("executor").execute(statement)
    assert refusal.value.sqlstate == "P7002"


def test_contract_of_the_page_can_be_published(outbox):
    [text] = blocks(PAGE, "toml")
    terms = tomllib.loads(text)["targets"]["bookings"]
    assert outbox.publish("bookings", **terms) == 1


def test_timings_of_the_page_are_the_defaults():
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `LEASEHOLD_"):
            name, default = (cell.strip(" `") for cell in line.split("|")[1:3])
            assert getattr(Timings(), name.removeprefix("LEASEHOLD_").lower()) == float(default)
