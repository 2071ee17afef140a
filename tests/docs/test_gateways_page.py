"""The examples of docs/how-to/gateways.md work, and its tables are complete and correct."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from leasehold.cli.sandbox import sandbox as sandbox_command
from leasehold.domain.intent import JsonDocument
from leasehold.domain.outcome import Accepted, Rejected
from leasehold.gateway.errors import NotSent
from leasehold.gateway.http.terms import HttpTerms
from leasehold.sandbox import FaultSettings
from tests.support.http_gateways import make_submission

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "gateways.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def run(example):
    names = {"__name__": "shop.letters"}
    exec(compile(example, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example):
    run(example)


async def test_python_gateway_of_the_page_returns_what_the_page_says():
    [example] = [one for one in EXAMPLES if "print_letter" in one]
    print_letter = run(example)["print_letter"]
    assert await print_letter(make_submission()) == Accepted(reference="letter-1")
    assert isinstance(await print_letter(make_submission(payload=None)), Rejected)
    with pytest.raises(NotSent):
        await print_letter(make_submission(payload=JsonDocument(b'{"paper": "out"}')))


def test_statuses_of_the_page_are_the_defaults():
    text = PAGE.read_text()
    terms = HttpTerms(url="https://a.example/", lookup_url="https://a.example/{key}")
    for name in ("accepted", "submitted", "rejected", "retryable", "saturated", "unknown"):
        [row] = re.findall(rf"^\| `{name}_statuses` \| ([^|]*) \|", text, re.MULTILINE)
        assert tuple(re.findall(r"[1-5](?:xx|\d\d)", row)) == terms.patterns_of(name)


def test_every_fault_setting_is_on_the_page():
    text = PAGE.read_text()
    assert [name for name in FaultSettings.model_fields if f"`{name}`" not in text] == []


def test_every_option_of_the_sandbox_is_on_the_page():
    text = PAGE.read_text()
    options = [
        f"--{name.replace('_', '-')}" for name in inspect.signature(sandbox_command).parameters
    ]
    assert options == re.findall(r"^\| `(--[a-z-]+)` \|", text, re.MULTILINE)


def test_every_status_of_a_ledger_is_on_the_page():
    rows = re.findall(r"^\| (`[A-Z]+`(?:, `[A-Z]+`)*) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"[A-Z]+", row)}
    assert named == {"COMMITTED", "PENDING", "VALID", "INVALID", "UNKNOWN"}
