"""Random steps of workers, holders, operators and time do what the model predicts.

Some examples are the same each time. The others differ from run to run: pytest prints their seed.
TEST_HYPOTHESIS_EXAMPLES=500 says how many.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Flaky, FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from tests.database.invariants import DisagreementError
from tests.database.machine_leased import Machine
from tests.database.machine_pipelines import PipelineMachine, all_terms, moves
from tests.support.mutants import mutate
from tests.support.servers import available_binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.database.model import Terms
    from tests.support.outbox import Outbox

EXAMPLES = int(os.environ.get("TEST_HYPOTHESIS_EXAMPLES", "25"))
FIXED = settings(
    max_examples=min(EXAMPLES, 50),
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
        r"WHEN p\.awaits_confirmation.*?THEN 'out_of_order'",
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
        "append_and_continue_streams",
        r"PERFORM leasehold\.advance_streams\(.*?\);",
        "",
    ),
    "a failure does not pause its stream": (
        "pause_failed_streams",
        r"WHERE c\.scope = 'stream' AND",
        "WHERE false AND",
    ),
    "a resumed stream forgets its other reasons": (
        "end_stream_pauses",
        r"AND s\.kind = p_kind AND s\.name = ANY \(p_names\)",
        "",
    ),
}
CHANGED_PIPELINES = {
    "a full pipeline goes on": (
        "look_at_streams",
        r"ELSE c\.pipeline_max - coalesce\(awaited\.rows, 0\) END",
        "ELSE 100 END",
    ),
    "a call starts behind a row that is in doubt": (
        "append_attempts",
        r"coalesce\(o\.new_state, p\.last_state\) = 'SUBMITTED'",
        "coalesce(o.new_state, p.last_state) IN ('SUBMITTED', 'IN_DOUBT')",
    ),
    "a call starts behind a row that must be sent again": (
        "append_attempts",
        r"coalesce\(o\.new_state, p\.last_state\) = 'SUBMITTED'",
        "coalesce(o.new_state, p.last_state) IN ('SUBMITTED', 'RETRYABLE')",
    ),
    "a row that awaits its confirmation is sent again": (
        "begin_stream_attempts",
        r"WHEN p\.awaits_confirmation\s+OR",
        "WHEN",
    ),
    "confirmations are asked for in the wrong order": (
        "due_confirmations",
        r"(row_number\(\) OVER \(ORDER BY p\.stream_seq)\) AS place",
        r"\1 DESC) AS place",
    ),
    "a question counts as a call": (
        "decide_streams",
        r"p_begin AND NOT is_asking AND head_action = 'call' AND",
        "p_begin AND",
    ),
    "the head waits until nobody must be asked about": (
        "decide_streams",
        r"OR awaited_due_at < head_due_at",
        "OR true",
    ),
    "a row behind submitted ones is not found": (
        "idle_streams",
        r"AND NOT p\.awaits_confirmation",
        "",
    ),
    "a call in flight behind submitted rows is forgotten": (
        "take_streams",
        r"ORDER BY p\.stream_seq LIMIT 200",
        "ORDER BY p.stream_seq LIMIT 1",
    ),
    "a stream is taken while a call behind submitted rows is in flight": (
        "is_stream_begun",
        r"LIMIT p_rows",
        "LIMIT 1",
    ),
    "an answer is taken for a later attempt": (
        "judge_outcomes",
        r"o\.attempt_no <> ledger\.attempt_no",
        "false",
    ),
    "a submission is awaited for ever": (
        "judge_outcomes",
        r"confirmation\.ends_at <= p_now THEN 'IN_DOUBT'",
        "false THEN 'IN_DOUBT'",
    ),
    "an operator skips what was submitted": (
        "skip_stream_head",
        r"AND NOT p\.awaits_confirmation",
        "",
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


def run_pipelines(outbox: Outbox, chosen: settings) -> None:
    numbers = itertools.count(1)

    @chosen
    @given(all_terms, moves)
    def play(terms: Terms, moves: list[tuple[Any, ...]]) -> None:
        PipelineMachine(outbox, next(numbers)).play(terms, moves)

    play()


def expect_a_disagreement(
    outbox: Outbox, examples: int = 300, run: Callable[[Outbox, settings], None] = run
) -> None:
    """The examples are the same each time, so a mutant that is found is always found."""
    with pytest.raises((DisagreementError, Flaky)) as caught:
        run(outbox, settings(FIXED, max_examples=examples, phases=[Phase.generate]))
    # Without it, a timeout would count too.
    errors = caught.value.exceptions if isinstance(caught.value, FlakyFailure) else [caught.value]
    assert any(isinstance(one, DisagreementError) for one in errors)


@pytest.mark.one_server
@pytest.mark.timeout(600 + 2 * EXAMPLES)  # hypothesis shrinks a failure first
@pytest.mark.parametrize("examples", [FIXED, RANDOM], ids=["fixed", "random"])
@pytest.mark.parametrize("run", [run, run_pipelines], ids=["all_scopes", "pipelines"])
def test_every_step_does_what_the_model_predicts_and_keeps_the_invariants(
    outbox: Outbox, examples: settings, run: Callable[[Outbox, settings], None]
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
# They take many examples to find; test_call_marks, test_plain_batches, test_fencing_token,
# test_stream_pipeline and test_superseded test the same directly.
RARE = {
    "a takeover forgets the marked calls",
    "an old token completes work in a plain batch",
    "a redrive forgets the fencing token",
    "an answer is taken for a later attempt",
}
# They take up to 200 examples, each a few seconds to a quarter of a minute. The direct tests that
# fail too are in test_repair, test_plain_batches, test_stream_order, test_stream_failures,
# test_streams, test_stream_pauses, test_stream_pipeline and test_confirmation.
SLOW = {
    "a dead asker takes the doubt with it",
    "a call that was not begun is recorded in a plain batch",
    "a stream is begun out of order",
    "a takeover of a stream forgets the call in flight",
    "a stream is taken while a slow call is in flight",
    "a lost stream may be written to",
    "a resumed stream forgets its other reasons",
    "the first reason that ends lets a stream go on",
    "a row that awaits its confirmation is sent again",
    "a stream is taken while a call behind submitted rows is in flight",
    "a submission is awaited for ever",
    "an operator skips what was submitted",
}


def by_effort(mutants: Iterable[str]) -> list[Any]:
    return [
        pytest.param(one, marks=[pytest.mark.thorough] if one in RARE | SLOW else [])
        for one in mutants
    ]


@on_one_server
@pytest.mark.parametrize("mutant", by_effort(CHANGED))
def test_machine_finds_a_broken_function(outbox: Outbox, mutant: str) -> None:
    mutate(outbox.database, *CHANGED[mutant])
    expect_a_disagreement(outbox, 3000 if mutant in RARE else 300)


def pause_twice(machine: Machine) -> None:
    """One reason ends before the other; random examples may miss it."""
    machine.publish_all()
    machine.pause("a", "ada", None)
    machine.pause("a", "bob", 1)
    machine.check_database()
    machine.advance(2)
    machine.claim_streams("holder-1", 0)
    machine.check_database()


@on_one_server
def test_machine_finds_a_broken_function_by_these_steps(outbox: Outbox) -> None:
    """The first reason that ends lets a stream go on."""
    pause_twice(Machine(outbox, 1))
    longest, shortest = r"max\(s\.paused_until\)", "min(s.paused_until)"
    mutate(outbox.database, "apply_stream_pauses", longest, shortest)
    with pytest.raises(DisagreementError):
        pause_twice(Machine(outbox, 2))


@on_one_server
@pytest.mark.parametrize("mutant", by_effort(CHANGED_PIPELINES))
def test_machine_of_pipelines_finds_a_broken_function(outbox: Outbox, mutant: str) -> None:
    mutate(outbox.database, *CHANGED_PIPELINES[mutant])
    expect_a_disagreement(outbox, 3000 if mutant in RARE else 300, run_pipelines)


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
