"""The next step after a claim, a call and a lookup, by guarantee and by time."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.contract import Contract, RetryTerms
from leasehold.domain.intent import AttemptState, Claimed, IntentId, JsonDocument
from leasehold.domain.lease import LeaseToken
from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.domain.retry import (
    DELAY_SECONDS_MAX,
    NOT_FOUND,
    Confirm,
    Finish,
    Hold,
    LookUp,
    LookUpAgain,
    Submit,
    after_calling,
    after_lookup,
    backoff_seconds,
    next_step,
    with_delay,
)
from leasehold.gateway.python.terms import PythonTerms

ID = UUID("0190b6d0-0000-7000-8000-000000000001")
FIRST_TRIED = datetime(2026, 1, 1, tzinfo=UTC)
SILENT = PythonTerms(function="gateways:send")
ASKABLE = PythonTerms(function="gateways:send", lookup="gateways:look_up")
WINDOW, LEASE, QUARANTINE = 3600, 30, 60

DOUBT, SUBMITTED = AttemptState.IN_DOUBT, AttemptState.SUBMITTED
RETRYABLE, ZOMBIE = AttemptState.RETRYABLE, AttemptState.ZOMBIE_REQUEUE
NOT_IN_DOUBT = [None, RETRYABLE, ZOMBIE]


def contract(guarantee="keyed", **fields):
    gateway = ASKABLE if guarantee == "lookup" else SILENT
    return Contract.model_validate(
        {"target": "sms", "scope": "item", "guarantee": guarantee, "gateway": gateway} | fields
    )


def claimed(last_state=None, age=0.0, deadline=None, **fields):
    """A claim, taken `age` seconds after the first attempt; `deadline` counts from there too."""
    claimed_at = FIRST_TRIED + timedelta(seconds=age)
    return Claimed(
        intent_id=IntentId(ID),
        lease_token=LeaseToken(UUID(int=7)),
        target="sms",
        contract_version=1,
        attempt_no=fields.get("attempt_no", 1),
        last_state=last_state,
        reference="ref-1" if last_state is SUBMITTED else None,
        priority=1,
        submission_key=ID,
        fencing_token=1,
        payload=JsonDocument(b"1"),
        body=None,
        content_type=None,
        metadata=None,
        trace_context=None,
        stream=None,
        created_at=FIRST_TRIED,
        due_at=claimed_at,
        deadline_at=None if deadline is None else FIRST_TRIED + timedelta(seconds=deadline),
        first_tried_at=FIRST_TRIED,
        claimed_at=claimed_at,
    )


@pytest.mark.parametrize("state", NOT_IN_DOUBT, ids=str)
@pytest.mark.parametrize("guarantee", ["keyed", "fenced", "lookup", "blind"])
def test_intent_that_is_not_in_doubt_is_submitted(guarantee, state):
    assert next_step(claimed(state, age=99_999), contract(guarantee)) == Submit()


@pytest.mark.parametrize("state", NOT_IN_DOUBT, ids=str)
def test_intent_past_its_deadline_and_not_in_doubt_ends_without_a_call(state):
    finish = Finish(Rejected(reason="deadline_exceeded"))
    assert next_step(claimed(state, age=10, deadline=10), contract()) == finish
    assert next_step(claimed(state, age=9, deadline=10), contract()) == Submit()


@pytest.mark.parametrize(
    ("guarantee", "step"),
    [
        ("keyed", Submit()),
        ("fenced", Submit()),
        ("lookup", LookUp()),
        ("blind", Hold(Unknown(retry_after_seconds=0, reason="cannot_be_asked"))),
    ],
)
@pytest.mark.parametrize("deadline", [None, 5])
def test_guarantee_decides_the_next_step_of_an_in_doubt_intent(guarantee, step, deadline):
    assert next_step(claimed(DOUBT, age=99_999, deadline=deadline), contract(guarantee)) == step


@pytest.mark.parametrize("guarantee", ["keyed", "fenced", "lookup"])
def test_submitted_intent_is_confirmed_by_its_reference(guarantee):
    terms = contract(guarantee, gateway=ASKABLE)
    assert next_step(claimed(SUBMITTED, deadline=0), terms) == Confirm("ref-1")


def test_submitted_intent_without_a_lookup_is_in_doubt():
    assert next_step(claimed(SUBMITTED), contract("fenced")) == Submit()
    assert isinstance(next_step(claimed(SUBMITTED), contract("blind")), Hold)


def keyed(**fields):
    return contract(key_window_seconds=WINDOW, **fields)


def put_off(seconds):
    return Hold(Unknown(retry_after_seconds=seconds, reason="key_window_over"))


@pytest.mark.parametrize("gateway", [SILENT, ASKABLE], ids=["silent", "askable"])
def test_key_is_resent_only_if_the_gateway_knows_it_for_the_whole_lease(gateway):
    terms = keyed(gateway=gateway)
    assert next_step(claimed(DOUBT, age=WINDOW - LEASE), terms) == Submit()
    assert next_step(claimed(DOUBT, age=WINDOW - LEASE + 1), terms) == put_off(LEASE - 1)
    assert next_step(claimed(DOUBT, age=WINDOW + 1), terms) == put_off(0)


def test_forgotten_key_is_looked_up_only_after_window_and_quarantine():
    terms = keyed(gateway=ASKABLE)
    over = WINDOW + QUARANTINE
    assert next_step(claimed(DOUBT, age=over - 1), terms) == put_off(0)
    assert next_step(claimed(DOUBT, age=over), terms) == LookUp()


def test_forgotten_key_without_a_lookup_is_held_at_any_age():
    assert next_step(claimed(DOUBT, age=1_000_000), keyed()) == put_off(0)


@pytest.mark.parametrize("gateway", [SILENT, ASKABLE], ids=["silent", "askable"])
def test_call_of_a_dead_holder_is_in_doubt_once_the_key_is_forgotten(gateway):
    terms = keyed(gateway=gateway)
    assert next_step(claimed(ZOMBIE, age=WINDOW - LEASE), terms) == Submit()
    assert next_step(claimed(ZOMBIE, age=WINDOW * 9), terms) == put_off(0)


def test_dead_holder_that_had_to_mark_its_calls_has_sent_nothing():
    assert next_step(claimed(ZOMBIE, age=WINDOW * 9), keyed(scope="stream")) == Submit()


@pytest.mark.parametrize("state", [None, RETRYABLE])
def test_intent_that_had_no_effect_may_be_sent_past_the_key_window(state):
    assert next_step(claimed(state, age=WINDOW * 9), keyed()) == Submit()


def test_retryable_answer_does_not_resolve_an_earlier_doubt():
    busy = Retryable(retry_after_seconds=7, is_saturated=True, reason="busy", code="503")
    still = Unknown(retry_after_seconds=7, reason="busy", code="503")
    assert after_calling(busy, claimed(DOUBT), contract()) == still
    assert after_calling(busy, claimed(DOUBT), contract("fenced")) == still
    assert after_calling(busy, claimed(ZOMBIE), contract()) == still
    for state in (None, RETRYABLE):
        assert after_calling(busy, claimed(state), contract()) == busy
    assert after_calling(busy, claimed(ZOMBIE), contract("lookup")) == busy


@pytest.mark.parametrize(
    "outcome",
    [
        Accepted(),
        Rejected(),
        Unknown(),
        Submitted(reference="r", ask_after_seconds=1),
        Deferred(reason="balance_too_low"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_other_outcomes_of_a_call_are_kept_as_they_are(outcome):
    assert after_calling(outcome, claimed(DOUBT), contract()) == outcome


@pytest.mark.parametrize(
    "answer", [Accepted(reference="r"), Rejected(), Submitted(reference="r", ask_after_seconds=3)]
)
def test_conclusive_answer_to_a_lookup_is_the_outcome(answer):
    assert after_lookup(answer, claimed(DOUBT), contract("lookup")) == answer


def test_intent_not_found_after_the_quarantine_is_resent_at_once():
    again = Retryable(retry_after_seconds=0, reason=NOT_FOUND, detail="404")
    answer = NotFound(detail="404")
    assert after_lookup(answer, claimed(DOUBT), contract("lookup")) == again
    past = claimed(DOUBT, age=WINDOW + QUARANTINE)
    assert after_lookup(answer, past, keyed(gateway=ASKABLE)) == again


def test_gateway_that_lost_a_submission_gets_it_again_only_if_harmless():
    sent_again = Retryable(retry_after_seconds=0, reason=NOT_FOUND)
    doubted = Unknown(retry_after_seconds=0, reason=NOT_FOUND)

    def lost(terms, age=0):
        return after_lookup(NotFound(), claimed(SUBMITTED, age=age), terms)

    assert lost(keyed(gateway=ASKABLE)) == sent_again
    assert lost(contract("fenced", gateway=ASKABLE), age=99_999) == sent_again
    assert lost(keyed(gateway=ASKABLE), age=WINDOW) == doubted
    assert lost(contract("lookup")) == doubted, "nobody waited out a quarantine before asking"


def test_inconclusive_lookup_is_repeated_after_the_longer_of_both_delays():
    def again(state, attempt_no=1, **fields):
        answer = Unknown(**fields)
        asked = after_lookup(answer, claimed(state, attempt_no=attempt_no), contract("lookup"))
        assert isinstance(asked, LookUpAgain)
        assert asked.answer == answer
        return asked.seconds

    assert again(DOUBT) == QUARANTINE
    assert again(DOUBT, attempt_no=6) == 5 * 2**5
    assert again(DOUBT, retry_after_seconds=0) == QUARANTINE
    assert again(DOUBT, retry_after_seconds=90) == 90


def test_inconclusive_lookup_of_a_submission_counts_as_not_yet_confirmed():
    """Otherwise a gateway that cannot be asked would never end the time for confirmation."""

    def again(**fields):
        answer = after_lookup(Unknown(**fields), claimed(SUBMITTED), contract("lookup"))
        assert isinstance(answer, Submitted)
        assert answer.reference == "ref-1"
        return answer.ask_after_seconds

    assert again() == 5
    assert again(retry_after_seconds=9e99) == 3600


@pytest.mark.parametrize("state", [DOUBT, SUBMITTED])
def test_gateway_is_asked_the_less_often_the_longer_it_takes(state):
    def wait(answer, age):
        decided = after_lookup(answer, claimed(state, age=age), contract("lookup"))
        if isinstance(decided, LookUpAgain):
            return decided.seconds
        return decided.ask_after_seconds

    pending = Submitted(reference="r", ask_after_seconds=2)
    assert [wait(pending, age) for age in (0, 20, 600, 1e6)] == [2, 2, 60, 3600]
    assert [wait(Unknown(), age) for age in (6000, 1e6)] == [600, 3600]


def test_value_that_is_neither_outcome_nor_answer_raises():
    with pytest.raises(AssertionError):
        after_lookup("went fine, I think", claimed(DOUBT), contract())
    with pytest.raises(AssertionError):
        with_delay("went fine, I think", contract(), 1, 0)


def test_backoff_doubles_from_the_first_to_the_longest_delay():
    waits = [backoff_seconds(contract(), attempt_no, 0) for attempt_no in range(1, 14)]
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


RETRIES = st.builds(
    lambda first, more, factor, jitter: RetryTerms(
        first_seconds=first,
        longest_seconds=min(first + more, 2_592_000.0),
        factor=factor,
        jitter=jitter,
    ),
    st.floats(0, 86_400),
    st.floats(0.001, 2_592_000),
    st.floats(1, 10),
    st.floats(0, 1),
)
ATTEMPTS = st.integers(1, 10_000)
JITTERS = st.floats(-1, 1)


@given(RETRIES, ATTEMPTS, JITTERS)
def test_backoff_stays_within_its_jitter_and_the_databases_limit(retry, attempt_no, jitter):
    terms = contract(retry=retry)
    plain = backoff_seconds(terms, attempt_no, 0)
    spread = backoff_seconds(terms, attempt_no, jitter)
    assert min(retry.first_seconds, retry.longest_seconds) <= plain <= retry.longest_seconds
    assert 0 <= spread <= DELAY_SECONDS_MAX
    assert spread <= retry.longest_seconds * (1 + retry.jitter)
    # Allow for float rounding.
    assert abs(spread - plain) <= plain * (retry.jitter + 1e-12)


@given(RETRIES, ATTEMPTS, JITTERS)
def test_backoff_never_shrinks_from_one_attempt_to_the_next(retry, attempt_no, jitter):
    terms = contract(retry=retry)
    assert backoff_seconds(terms, attempt_no, jitter) <= backoff_seconds(
        terms, attempt_no + 1, jitter
    )


@given(
    st.floats(allow_nan=True),
    st.sampled_from([Retryable, Unknown, partial(Deferred, reason="r")]),
    ATTEMPTS,
    JITTERS,
)
def test_delay_of_the_gateway_is_kept_up_to_thirty_days(asked, kind, attempt_no, jitter):
    delayed = with_delay(kind(retry_after_seconds=asked), contract(), attempt_no, jitter)
    least = 1 if isinstance(delayed, Deferred) else 0
    assert least <= delayed.retry_after_seconds <= DELAY_SECONDS_MAX
    if not math.isnan(asked):
        assert delayed.retry_after_seconds >= min(asked, DELAY_SECONDS_MAX)
        assert delayed.retry_after_seconds == min(max(asked, least), DELAY_SECONDS_MAX)


@pytest.mark.parametrize("longest", [30.0, 3600.0])
def test_gateway_is_not_granted_a_longer_delay_than_the_contract_allows(longest):
    terms = contract("lookup", retry=RetryTerms(retry_after_seconds_max=longest))
    for asked, granted in [(None, None), (7.0, 7.0), (longest, longest), (1e6, longest)]:
        busy = Retryable(retry_after_seconds=asked, is_saturated=True, code="429")
        called = after_calling(busy, claimed(), terms)
        assert called == Retryable(retry_after_seconds=granted, is_saturated=True, code="429")
        refused = Deferred(reason="r", retry_after_seconds=asked, is_target_wide=True)
        kept = Deferred(reason="r", retry_after_seconds=granted, is_target_wide=True)
        assert after_calling(refused, claimed(), terms) == kept
        lost = after_calling(Unknown(retry_after_seconds=asked), claimed(), terms)
        assert lost == Unknown(retry_after_seconds=granted)
    later = Submitted(reference="r", ask_after_seconds=1e6)
    assert after_calling(later, claimed(), terms).ask_after_seconds == longest
    assert after_lookup(later, claimed(SUBMITTED), terms).ask_after_seconds == longest


def test_own_delay_may_be_longer_than_what_a_gateway_may_ask_for():
    """An intent past its key window waits for as long as the window lasts."""
    waiting = Unknown(retry_after_seconds=86_400, reason="key_window_over")
    assert with_delay(waiting, contract(), 1, 0) == waiting


def test_missing_delay_is_filled_in_and_other_fields_are_kept():
    busy = Retryable(is_saturated=True, reason="busy", code="503", detail="d")
    filled = Retryable(
        retry_after_seconds=10, is_saturated=True, reason="busy", code="503", detail="d"
    )
    assert with_delay(busy, contract(), 2, 0) == filled
    assert with_delay(Deferred(reason="r"), contract(), 1, 0) == Deferred(
        reason="r", retry_after_seconds=5
    )
    assert with_delay(Unknown(), contract(), 1, 1) == Unknown(retry_after_seconds=6)
    assert with_delay(Unknown(), contract(), 1, -1) == Unknown(retry_after_seconds=4)


@pytest.mark.parametrize("asked", [0, 0.001, -1, None])
def test_deferred_call_is_never_repeated_at_once_because_it_spends_no_attempt(asked):
    terms = contract(retry=RetryTerms(first_seconds=0))
    delayed = with_delay(Deferred(reason="r", retry_after_seconds=asked), terms, 1, 0)
    assert delayed == Deferred(reason="r", retry_after_seconds=1)


def test_final_outcome_has_no_delay():
    for outcome in (Accepted(reference="r"), Rejected(reason="no")):
        assert with_delay(outcome, contract(), 1, 0) == outcome


def test_delay_of_a_submitted_outcome_is_bounded():
    def asked_after(seconds):
        outcome = Submitted(reference="r", ask_after_seconds=seconds)
        delayed = with_delay(outcome, contract(), 1, 0)
        assert isinstance(delayed, Submitted)
        return delayed.ask_after_seconds

    asked = [asked_after(seconds) for seconds in (3, -1, float("inf"), float("nan"))]
    assert asked == [3, 0, DELAY_SECONDS_MAX, 5]


@pytest.mark.parametrize("jitter", [-1.01, 1.01, float("nan")])
def test_jitter_out_of_range_is_refused(jitter):
    with pytest.raises(ValueError, match="from -1 to 1"):
        backoff_seconds(contract(), 1, jitter)
