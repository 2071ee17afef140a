"""One token bucket: it starts full, earns with time, and says how long to wait."""

from __future__ import annotations

import pytest

from leasehold.service.token_bucket import TokenBucket


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_full_bucket_is_used_up_and_filled_with_time(clock):
    bucket = TokenBucket(10.0, 20, clock)
    assert bucket.available() == 20
    bucket.take(20)
    assert (bucket.available(), bucket.seconds_until(5)) == (0, pytest.approx(0.5))
    clock.now = 0.5
    assert (bucket.available(), bucket.seconds_until(5)) == (5, 0.0)
    clock.now = 100
    assert bucket.available() == 20


def test_bucket_without_a_rate_never_refuses(clock):
    bucket = TokenBucket(None, 1, clock)
    bucket.take(1_000_000)
    assert (bucket.available(), bucket.seconds_until(1000)) == (None, 0.0)


def test_debt_is_paid_before_the_next_token(clock):
    bucket = TokenBucket(1.0, 1, clock)
    bucket.take(3)
    assert bucket.seconds_until() == pytest.approx(3)
    clock.now = 3
    assert bucket.available() == 1
