"""One backoff: it doubles, is bounded, spreads those who failed together, and starts again."""

from __future__ import annotations

from leasehold.service.backoff import Backoff


def test_pauses_double_up_to_the_maximum():
    backoff = Backoff(0.5, 5.0, jitter=(1.0, 1.0))
    assert [backoff.next_seconds() for _ in range(6)] == [0.5, 1, 2, 4, 5, 5]


def test_success_starts_again_with_the_first_pause():
    backoff = Backoff(1.0, 60.0, jitter=(1.0, 1.0))
    backoff.next_seconds()
    backoff.next_seconds()
    backoff.reset()
    assert (backoff.failures, backoff.next_seconds()) == (0, 1.0)


def test_maximum_may_differ_for_one_pause():
    backoff = Backoff(1.0, 60.0, jitter=(1.0, 1.0))
    assert [backoff.next_seconds(1.5) for _ in range(3)] == [1.0, 1.5, 1.5]


def test_instances_that_failed_together_do_not_retry_together():
    pauses = {Backoff(1.0, 1.0).next_seconds() for _ in range(50)}
    assert len(pauses) > 40
    assert 0.5 <= min(pauses) <= max(pauses) <= 1.0


def test_endless_failures_do_not_overflow():
    backoff = Backoff(0.1, 5.0, jitter=(1.0, 1.0))
    assert {backoff.next_seconds() for _ in range(5000)} >= {0.1, 5.0}
