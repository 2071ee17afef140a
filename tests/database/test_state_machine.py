"""Random steps of workers, holders, operators and time do what the model predicts.

Some examples are the same each time. The others differ from run to run: pytest prints their seed.
TEST_HYPOTHESIS_EXAMPLES=500 says how many.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.database.invariants import DisagreementError
from tests.database.machine_leased import Machine
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from tests.support.outbox import Outbox

EXAMPLES = int(os.environ.get("TEST_HYPOTHESIS_EXAMPLES", "50"))
FIXED = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
RANDOM = settings(FIXED, max_examples=EXAMPLES, derandomize=False)
# The mutants: functions with a changed text, and triggers that corrupt a write.
CHANGED = {
    "a completion needs no token": (
        "judge_outcomes",
        r"p\.lease_token IS DISTINCT FROM \w+\.lease_token",
        "false",
    ),
    "a claim takes what another worker holds": (
        "requeue_expired_claims",
        r"AND (first|p)\.lease_expires_at <= p_now",
        "",
    ),
    "a dead asker takes the doubt with it": (
        "expired_claim_outcome",
        r"p_pending\.last_state IN \('IN_DOUBT', 'SUBMITTED'\)",
        "false",
    ),
    "a stale holder may write": (
        "require_lease",
        r"IF NOT FOUND\s+OR .*? <= clock_timestamp\(\) THEN",
        "IF false THEN",
    ),
    "a takeover keeps the epoch": ("take_lease", r"l\.lease_epoch \+ 1", "l.lease_epoch"),
    "a takeover forgets the calls in flight": (
        "take_lease",
        r"PERFORM leasehold\.put_calls_in_doubt\(.*?\);",
        "",
    ),
    "a takeover forgets the marked calls": (
        "put_calls_in_doubt",
        r"OR call\.intent_id IS NOT NULL",
        "",
    ),
    "a call that was not begun is recorded in a plain batch": (
        "append_attempts",
        r"AND NOT leasehold\.is_unbegun_call\(.*?\)\s+AS is_plain",
        "AS is_plain",
    ),
    "an old token completes work in a plain batch": (
        "append_attempts",
        r"array_agg\(p\.lease_token\) = v_tokens",
        "true",
    ),
    "a redrive forgets the fencing token": (
        "redrive_intent",
        r"v_old\.intent_id, v_token_base\)",
        "v_old.intent_id, 0)",
    ),
    "a deadline ends a call that is marked": (
        "lock_missed_under_leases",
        r"AND \(p\.intent_id, p\.attempt_count \+ 1\) NOT IN \(.*?attempt_no\)\)",
        "",
    ),
    "a clock that is set back freezes a lease": (
        "repair_lease_times",
        r"IF NOT FOUND OR",
        "IF true OR",
    ),
    "a stream is begun out of order": (
        "begin_stream_attempts",
        r"WHEN EXISTS \(.*?THEN 'out_of_order'",
        "",
    ),
    "a takeover of a stream forgets the call in flight": (
        "take_streams",
        r"PERFORM leasehold\.append_attempts\(.*?\);",
        "NULL;",
    ),
    "a stream is taken while a slow call is in flight": (
        "is_stream_begun",
        r"coalesce\(bool_or.*?false\)",
        "false",
    ),
    "a lost stream may be written to": (
        "lock_held_streams",
        r"AND l\.lease_epoch = asked\.lease_epoch\s+WHERE l\.holder_id = p_holder_id AND",
        "WHERE",
    ),
    "a cancelled head leaves its stream without one": (
        "append_attempts",
        r"PERFORM leasehold\.next_stream_heads\(.*?\);",
        "",
    ),
    "a failure does not pause its stream": (
        "pause_failed_streams",
        r"'FAILED' = ANY \(p_states\)",
        "false",
    ),
}
SPOILED = {
    "repair does not clear the lease": (
        "BEFORE UPDATE ON leasehold.outbox_pending",
        """
        IF NEW.last_state = 'ZOMBIE_REQUEUE' AND NEW.attempt_count > OLD.attempt_count THEN
          NEW.claimed_by := OLD.claimed_by; NEW.lease_token := OLD.lease_token;
          NEW.lease_expires_at := OLD.lease_expires_at;
        END IF;
        """,
    ),
    "the ledger skips a number": (
        "BEFORE INSERT ON leasehold.outbox_attempts",
        "IF NEW.attempt_no = 2 THEN NEW.attempt_no := 3; END IF;",
    ),
}


def run(outbox: Outbox, chosen: settings) -> None:
    numbers = itertools.count(1)
    run_state_machine_as_test(lambda: Machine(outbox, next(numbers)), settings=chosen)


def expect_a_disagreement(outbox: Outbox, examples: int = 300) -> None:
    """The examples are the same each time, so a mutant that is found is always found."""
    with pytest.raises((DisagreementError, Flaky)):
        run(outbox, settings(FIXED, max_examples=examples, phases=[Phase.generate]))


@pytest.mark.one_server
@pytest.mark.timeout(600 + 2 * EXAMPLES)  # hypothesis shrinks a failure first
@pytest.mark.parametrize("examples", [FIXED, RANDOM], ids=["fixed", "random"])
def test_every_step_does_what_the_model_predicts_and_keeps_the_invariants(
    outbox: Outbox, examples: settings
) -> None:
    run(outbox, examples)


# One server version is enough to find mutants.
on_one_server = pytest.mark.parametrize(
    "postgres",
    [
        pytest.param(one, marks=[pytest.mark.thorough] if place else [])
        for place, one in enumerate(available_binaries())
    ],
    indirect=True,
    scope="session",
)
# They take many examples to find; test_call_marks, test_plain_batches and test_fencing_token test
# the same directly.
RARE = {
    "a takeover forgets the marked calls",
    "an old token completes work in a plain batch",
    "a redrive forgets the fencing token",
}


@on_one_server
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, marks=[pytest.mark.thorough] if one in RARE else []) for one in CHANGED],
)
def test_machine_finds_a_broken_function(outbox: Outbox, mutant: str) -> None:
    function, pattern, replacement = CHANGED[mutant]
    outbox.database.execute("SET search_path = pg_catalog")  # so that all types are in full
    [row] = outbox.database.execute(
        "SELECT pg_get_functiondef(oid) AS text FROM pg_proc"
        " WHERE pronamespace = 'leasehold'::regnamespace AND proname = %s",
        [function],
    )
    text, count = re.subn(pattern, replacement, row["text"], flags=re.DOTALL)
    assert count > 0, f"{function} reads otherwise now: give the mutant its new words"
    outbox.database.owner_execute(text)
    expect_a_disagreement(outbox, 3000 if mutant in RARE else 300)


@on_one_server
@pytest.mark.parametrize("mutant", SPOILED)
def test_machine_finds_a_corrupted_write(outbox: Outbox, mutant: str) -> None:
    event, body = SPOILED[mutant]
    outbox.database.owner_execute(
        "CREATE FUNCTION leasehold.spoil() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN {body} RETURN NEW; END $$;"
        f"CREATE TRIGGER spoil {event} FOR EACH ROW EXECUTE FUNCTION leasehold.spoil()"
    )
    expect_a_disagreement(outbox)
