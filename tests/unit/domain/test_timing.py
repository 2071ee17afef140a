"""Timings that cannot work together are refused, for the process and for each lease."""

from __future__ import annotations

import pytest

from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.timing import Timings


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"heartbeat_seconds": 10},
            r"heartbeat_seconds \(10\) must be less than lease_seconds / 3 \(10\)",
        ),
        ({"heartbeat_seconds": 4, "lease_seconds": 12}, r"lease_seconds / 3 \(4\)"),
        ({"reaper_seconds": 30}, r"reaper_seconds \(30\) must be less than lease_seconds \(30\)"),
        ({"shutdown_seconds": 30.5}, r"shutdown_seconds \(30.5\) must not exceed lease_seconds"),
        (
            {"stream_claim_seconds": 15},
            r"heartbeat_seconds \(5\) must be less than stream_claim_seconds / 3 \(5\): two",
        ),
        (
            {"stream_linger_seconds": 180},
            r"stream_linger_seconds \(180\) must be more than stream_claim.* \(180\): a stream",
        ),
        (
            {"stream_claim_seconds": 43200, "stream_grace_seconds": 43200},
            r"stream_linger_seconds \(86400\) must be more than",
        ),
    ],
)
def test_timings_that_cannot_work_together_are_refused_with_the_reason(given, reason):
    with pytest.raises(InvalidArgument, match=reason):
        Timings(**given)
    with pytest.raises(InvalidArgument, match=reason):
        read_settings(**given, pool_wait_seconds=1, statement_seconds=4)


def test_extreme_but_possible_timings_are_accepted():
    Timings(heartbeat_seconds=9.99, reaper_seconds=29.9, shutdown_seconds=30)


def test_process_stops_within_its_lease_and_its_calls_end_earlier():
    assert (Timings().stop_seconds, Timings().finish_seconds) == (30, 20)
    assert Timings(shutdown_seconds=30).finish_seconds == 25
    short = Timings(lease_seconds=2, heartbeat_seconds=0.5, reaper_seconds=1, shutdown_seconds=2)
    assert (short.stop_seconds, short.finish_seconds) == (10, 2)


def test_call_timeout_longer_than_the_lease_is_refused():
    timings = Timings(heartbeat_seconds=1, reaper_seconds=2, shutdown_seconds=3)
    timings.require(10, 9.9)
    with pytest.raises(InvalidArgument, match=r"call_timeout_seconds \(10\) must be less than"):
        timings.require(10, 10)


def test_quarantine_shorter_than_two_leader_leases_is_refused():
    timings = Timings(cluster_lease_seconds=60)
    timings.require_cluster(25, quarantine_seconds=120)
    with pytest.raises(InvalidArgument, match=r"quarantine_seconds \(119\) must be at least 2 \*"):
        timings.require_cluster(25, quarantine_seconds=119)


def test_lease_that_may_end_before_a_result_is_written_is_refused():
    """A call may end right before a renewal, and then wait for the slowest database call."""
    timings = Timings(
        database_seconds=12,
        heartbeat_seconds=1,
        reaper_seconds=2,
        shutdown_seconds=3,
        cluster_renew_seconds=20,
        cluster_lease_seconds=32,
        stream_claim_seconds=10,
        stream_grace_seconds=3,
    )
    timings.require(13.1)
    refused = (
        r"longest database call \(12 seconds\) and heartbeat_seconds \(1\) .* lease_seconds \("
    )
    with pytest.raises(InvalidArgument, match=refused + r"13\)"):
        timings.require(13)
    with pytest.raises(
        InvalidArgument, match=r"cluster_renew_seconds \(20\) together must be less"
    ):
        timings.require_cluster(5, 64)
    with pytest.raises(InvalidArgument, match=r"than stream_claim_seconds \+ stream_grace_seconds"):
        timings.require_stream(5, 20)


def test_contract_that_the_expiries_of_streams_cannot_serve_is_refused():
    timings = Timings(stream_claim_seconds=30, stream_grace_seconds=0)
    timings.require_stream(29.9, quarantine_seconds=60)
    with pytest.raises(InvalidArgument, match=r"call_timeout_seconds \(30\) must be less than"):
        timings.require_stream(30, quarantine_seconds=60)
    with pytest.raises(InvalidArgument, match=r"quarantine_seconds \(59\) must be at least 2 \*"):
        timings.require_stream(10, quarantine_seconds=59)


def test_process_can_only_shorten_the_lease_of_a_contract():
    assert Timings().lease_of(120) == 120
    assert Timings(lease_seconds=60).lease_of(120) == 60
    assert Timings(lease_seconds=60).lease_of(30) == 30


def test_environment_overrides_the_settings_file(monkeypatch, tmp_path):
    monkeypatch.setenv("LEASEHOLD_REAPER_SECONDS", "7")
    file = tmp_path / "settings"
    file.write_text("LEASEHOLD_REAPER_SECONDS=8\nLEASEHOLD_CONCURRENCY=3\n")
    settings = read_settings(file)
    assert (settings.reaper_seconds, settings.concurrency) == (7, 3)
    with pytest.raises(InvalidArgument, match="does not exist"):
        read_settings(tmp_path / "missing")
