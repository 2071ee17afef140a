"""What the database functions reach. Those of items and leaders need nothing of streams."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leasehold.store.postgres

FUNCTIONS = Path(leasehold.store.postgres.__file__).parent / "sql" / "functions"

WITHOUT_STREAMS = (
    "append_attempts",
    "judge_outcomes",
    "acquire_lease",
    "acquire_lease_by_lock",
    "take_lease",
    "renew_lease",
    "release_lease",
    "record_attempts",
    "mark_calls",
    "begin_leased_attempts",
    "refresh_due_rows",
    "claim_outbox_batch",
    "begin_outbox_attempts",
    "complete_outbox_attempts",
    "complete_outbox_attempt",
    "repair_expired_leases",
)


def reached_from(name: str) -> set[str]:
    """Every function, table and type of ours that it names, and what those name in turn."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        path = FUNCTIONS / f"{waiting.pop()}.sql"
        if path.exists():
            code = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
            named = set(re.findall(r"\bleasehold\.(\w+)", code)) - reached
            reached |= named
            waiting += sorted(named)
    return reached


@pytest.mark.parametrize("function", WITHOUT_STREAMS)
def test_function_of_items_and_leaders_reaches_no_stream(function):
    reached = reached_from(function)
    assert function in reached
    assert {name for name in reached if "stream" in name} == set()


@pytest.mark.parametrize(
    "function", ["record_stream_attempts", "repair_missed_deadlines", "cancel_intent"]
)
def test_function_that_continues_streams_reaches_them(function):
    assert {"append_attempts", "pause_failed_streams", "stream_pauses", "leases"} <= reached_from(
        function
    )
