"""For how long things may take in one process, and which relations between these times must hold.

A contract's `lease_seconds` is the lease of its items; `Timings.lease_seconds` can only make it
shorter, because the contract's quarantine was made for a lease no longer than its own. So the
relations are checked twice: once for the process alone, and for each contract that it serves.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.domain.errors import InvalidArgument

# What a contract has that does not say anything else, and what a leader's lease is by default.
LEASE_SECONDS = 30.0
CLUSTER_LEASE_SECONDS = 60.0
# Work that takes longer than this many leases is aborted: nothing is held indefinitely.
ABORT_LEASES = 3
# A leader by advisory lock whose last answered ping is this many pings old begins nothing new; it
# cannot be less than the shortest lease.
YIELD_PINGS = 4
YIELD_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The times of one process; refuses what cannot work."""

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

    def __post_init__(self) -> None:
        if self.cluster_renew_seconds >= self.cluster_lease_seconds:
            raise InvalidArgument(
                f"cluster_renew_seconds ({self.cluster_renew_seconds:g}) must be less than "
                f"cluster_lease_seconds ({self.cluster_lease_seconds:g}): a leader must renew its "
                "lease before it ends"
            )
        self.require(LEASE_SECONDS if self.lease_seconds is None else self.lease_seconds)

    @property
    def cluster_yield_seconds(self) -> float:
        """How long after its last answered ping a leader by advisory lock may begin something."""
        return max(YIELD_SECONDS_MIN, YIELD_PINGS * self.cluster_ping_seconds)

    def require_pings(self) -> None:
        """Refuse pings that are too rare for an advisory lock to be held by."""
        if self.cluster_yield_seconds > self.cluster_lease_seconds:
            raise InvalidArgument(
                f"{YIELD_PINGS} x cluster_ping_seconds, and {YIELD_SECONDS_MIN:g} second "
                f"({self.cluster_yield_seconds:g}), must not be over cluster_lease_seconds "
                f"({self.cluster_lease_seconds:g}): a leader must stop beginning before it must "
                "stop altogether"
            )

    def lease_of(self, contract_lease_seconds: float) -> float:
        """Say how long to claim an item under a contract with this lease."""
        if self.lease_seconds is None:
            return contract_lease_seconds
        return min(self.lease_seconds, contract_lease_seconds)

    def require_cluster(self, call_timeout_seconds: float, quarantine_seconds: float) -> None:
        """Refuse calls that cannot end under a leader's lease, and doubts that are asked about
        while a leader that was paused may still send.
        """
        if quarantine_seconds < 2 * self.cluster_lease_seconds:
            raise InvalidArgument(
                f"quarantine_seconds ({quarantine_seconds:g}) must be at least 2 * "
                f"cluster_lease_seconds ({2 * self.cluster_lease_seconds:g}): until then a paused "
                'leader may still send, and "not found" means nothing'
            )
        if call_timeout_seconds >= self.cluster_lease_seconds:
            raise InvalidArgument(
                f"call_timeout_seconds ({call_timeout_seconds:g}) must be less than "
                f"cluster_lease_seconds ({self.cluster_lease_seconds:g}): a call must end while "
                "its lease stands, even if no renewal gets through"
            )

    def require(self, lease_seconds: float, call_timeout_seconds: float = 0) -> None:
        """Refuse a lease, and calls under it, that these times cannot keep."""
        if self.heartbeat_seconds >= lease_seconds / 3:
            raise InvalidArgument(
                f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be less than "
                f"lease_seconds / 3 ({lease_seconds / 3:g}): two beats may be lost before the lease"
            )
        if self.reaper_seconds >= lease_seconds:
            raise InvalidArgument(
                f"reaper_seconds ({self.reaper_seconds:g}) must be less than lease_seconds "
                f"({lease_seconds:g}): what a dead worker left must not wait longer than its lease"
            )
        if self.shutdown_seconds > lease_seconds:
            raise InvalidArgument(
                f"shutdown_seconds ({self.shutdown_seconds:g}) must not be over lease_seconds "
                f"({lease_seconds:g}): whoever waits longer may be waiting for what it has lost"
            )
        if call_timeout_seconds >= lease_seconds:
            raise InvalidArgument(
                f"call_timeout_seconds ({call_timeout_seconds:g}) must be less than lease_seconds "
                f"({lease_seconds:g}): a call must end while its lease stands, even if no renewal "
                "gets through"
            )
