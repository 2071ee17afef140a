"""The timings of one process, and the relations that must hold between them.

A contract's `lease_seconds` is the lease of its items. `Timings.lease_seconds` can only shorten it,
because the contract's quarantine is based on it. So the relations are checked twice: for the
process, and for each contract that it serves.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.domain.errors import InvalidArgument

# The defaults of a contract's lease and of a leader's lease. A call to somebody else's service may
# take long, and its instance may be paused meanwhile.
LEASE_SECONDS = 30.0
OUTSIDE_LEASE_SECONDS = 60.0
CLUSTER_LEASE_SECONDS = 60.0
# The defaults of the two phases of a stream's expiry. The second one is three minutes after a
# renewal.
STREAM_CLAIM_SECONDS = 30.0
STREAM_GRACE_SECONDS = 150.0
# How long an empty stream keeps its rows.
STREAM_LINGER_SECONDS = 86400.0
# A call that takes longer than this many leases is aborted, so that nothing is held forever.
ABORT_LEASES = 3
# A leader by advisory lock begins no new calls when its last answered ping is this many intervals
# old, but at least the shortest lease.
YIELD_PINGS = 4
YIELD_SECONDS_MIN = 1.0
# A process stops within one lease, but has at least this long; the last part of that is for the
# results of calls that were given up, and for releasing what it holds.
STOP_SECONDS_MIN = 10.0
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The timings of one process. Refuses values that cannot work together."""

    lease_seconds: float | None = None
    heartbeat_seconds: float = 5.0
    reaper_seconds: float = 10.0
    shutdown_seconds: float = 20.0
    poll_seconds: float = 1.0
    contracts_seconds: float = 5.0
    cluster_lease_seconds: float = CLUSTER_LEASE_SECONDS
    cluster_renew_seconds: float = 20.0
    cluster_acquire_seconds: float = 30.0
    cluster_ping_seconds: float = 0.3
    schedule_refresh_seconds: float = 1.0
    stream_claim_seconds: float = STREAM_CLAIM_SECONDS
    stream_grace_seconds: float = STREAM_GRACE_SECONDS
    stream_linger_seconds: float = STREAM_LINGER_SECONDS
    database_seconds: float = 0.0  # the longest that a database call can take

    def __post_init__(self) -> None:
        if self.cluster_renew_seconds >= self.cluster_lease_seconds:
            raise InvalidArgument(
                f"cluster_renew_seconds ({self.cluster_renew_seconds:g}) must be less than "
                f"cluster_lease_seconds ({self.cluster_lease_seconds:g}): a leader must renew its "
                "lease before it expires"
            )
        self.require(self.item_lease_seconds)
        if self.heartbeat_seconds >= self.stream_claim_seconds / 3:
            raise InvalidArgument(
                f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be less than "
                f"stream_claim_seconds / 3 ({self.stream_claim_seconds / 3:g}): two heartbeats may "
                "fail"
            )
        if self.stream_linger_seconds <= self.stream_claim_seconds + self.stream_grace_seconds:
            raise InvalidArgument(
                f"stream_linger_seconds ({self.stream_linger_seconds:g}) must be more than "
                f"stream_claim_seconds + stream_grace_seconds "
                f"({self.stream_claim_seconds + self.stream_grace_seconds:g}): a stream must not "
                "be deleted while a holder may still count on its lease"
            )

    @property
    def item_lease_seconds(self) -> float:
        """The lease of this process, or the shortest default if only contracts say."""
        return LEASE_SECONDS if self.lease_seconds is None else self.lease_seconds

    @property
    def cluster_yield_seconds(self) -> float:
        """How long after its last answered ping a leader by advisory lock may begin new calls."""
        return max(YIELD_SECONDS_MIN, YIELD_PINGS * self.cluster_ping_seconds)

    @property
    def stop_seconds(self) -> float:
        """How long a process may take to stop, everything included."""
        return max(self.item_lease_seconds, STOP_SECONDS_MIN)

    @property
    def finish_seconds(self) -> float:
        """How long running calls may go on when the process stops."""
        return min(self.shutdown_seconds, self.stop_seconds - END_SECONDS)

    def require_pings(self) -> None:
        """Refuse pings that are too rare for an advisory lock."""
        if self.cluster_yield_seconds > self.cluster_lease_seconds:
            raise InvalidArgument(
                f"{YIELD_PINGS} x cluster_ping_seconds, at least {YIELD_SECONDS_MIN:g} second "
                f"({self.cluster_yield_seconds:g}), must not exceed cluster_lease_seconds "
                f"({self.cluster_lease_seconds:g}): a leader must stop beginning calls before its "
                "lease ends"
            )

    def lease_of(self, contract_lease_seconds: float) -> float:
        """Return the lease of an item whose contract has this lease."""
        if self.lease_seconds is None:
            return contract_lease_seconds
        return min(self.lease_seconds, contract_lease_seconds)

    def require_cluster(self, call_timeout_seconds: float, quarantine_seconds: float) -> None:
        """Refuse a contract of scope cluster that a leader's lease cannot serve.

        Its calls must end and be recorded within the lease, and its quarantine must outlast a
        paused leader.
        """
        self._require_time_to_write(
            "cluster_renew_seconds",
            self.cluster_renew_seconds,
            "cluster_lease_seconds",
            self.cluster_lease_seconds,
        )
        if quarantine_seconds < 2 * self.cluster_lease_seconds:
            raise InvalidArgument(
                f"quarantine_seconds ({quarantine_seconds:g}) must be at least 2 * "
                f"cluster_lease_seconds ({2 * self.cluster_lease_seconds:g}): until then a paused "
                'leader may still send, so "not found" proves nothing'
            )
        if call_timeout_seconds >= self.cluster_lease_seconds:
            raise InvalidArgument(
                f"call_timeout_seconds ({call_timeout_seconds:g}) must be less than "
                f"cluster_lease_seconds ({self.cluster_lease_seconds:g}): a call must end "
                "while its lease is valid, even if every renewal fails"
            )

    def require_stream(self, call_timeout_seconds: float, quarantine_seconds: float) -> None:
        """Refuse a contract of scope stream that the expiries of streams cannot serve.

        A call may outlast the first expiry, but must end and be recorded before the second. The
        quarantine must outlast a paused holder, which may begin calls until the first expiry.
        """
        self._require_time_to_write(
            "heartbeat_seconds",
            self.heartbeat_seconds,
            "stream_claim_seconds + stream_grace_seconds",
            self.stream_claim_seconds + self.stream_grace_seconds,
        )
        if quarantine_seconds < 2 * self.stream_claim_seconds:
            raise InvalidArgument(
                f"quarantine_seconds ({quarantine_seconds:g}) must be at least 2 * "
                f"stream_claim_seconds ({2 * self.stream_claim_seconds:g}): until then a paused "
                'holder may still send, so "not found" proves nothing'
            )
        if call_timeout_seconds >= self.stream_claim_seconds + self.stream_grace_seconds:
            raise InvalidArgument(
                f"call_timeout_seconds ({call_timeout_seconds:g}) must be less than "
                f"stream_claim_seconds + stream_grace_seconds "
                f"({self.stream_claim_seconds + self.stream_grace_seconds:g}): a call must end "
                "while its stream is held, even if every renewal fails"
            )

    def require(self, lease_seconds: float, call_timeout_seconds: float = 0) -> None:
        """Refuse a lease, or a call timeout under it, that these timings cannot serve."""
        self._require_time_to_write(
            "heartbeat_seconds", self.heartbeat_seconds, "lease_seconds", lease_seconds
        )
        if self.heartbeat_seconds >= lease_seconds / 3:
            raise InvalidArgument(
                f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be less than "
                f"lease_seconds / 3 ({lease_seconds / 3:g}): two heartbeats may fail"
            )
        if self.reaper_seconds >= lease_seconds:
            raise InvalidArgument(
                f"reaper_seconds ({self.reaper_seconds:g}) must be less than lease_seconds "
                f"({lease_seconds:g}): the work of a dead worker must not wait another lease"
            )
        if self.shutdown_seconds > lease_seconds:
            raise InvalidArgument(
                f"shutdown_seconds ({self.shutdown_seconds:g}) must not exceed lease_seconds "
                f"({lease_seconds:g}): after that, the claims it waits for may be lost"
            )
        if call_timeout_seconds >= lease_seconds:
            raise InvalidArgument(
                f"call_timeout_seconds ({call_timeout_seconds:g}) must be less than lease_seconds "
                f"({lease_seconds:g}): a call must end while its lease is valid, even if every "
                "renewal fails"
            )

    def _require_time_to_write(
        self, interval_name: str, interval_seconds: float, lease_name: str, lease_seconds: float
    ) -> None:
        """Refuse a lease that may end while the result of a call waits for the database.

        A call may end right before a renewal is due. Then the rest of the lease is its time.
        """
        if self.database_seconds + interval_seconds >= lease_seconds:
            raise InvalidArgument(
                f"the longest database call ({self.database_seconds:g} seconds) and "
                f"{interval_name} ({interval_seconds:g}) together must be less than {lease_name} "
                f"({lease_seconds:g}): otherwise the result of a call may wait until its lease has "
                "ended, and is lost; lower pool_wait_seconds or statement_seconds"
            )
