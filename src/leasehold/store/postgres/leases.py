"""Leases of clusters, and the registration of instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.domain.lease import Lease
from leasehold.store.generation_rows import Generation
from leasehold.store.postgres.json_arguments import json_argument
from leasehold.store.postgres.query import Query, rows_of
from leasehold.store.rows import Acquisition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


_GENERATION = rows_of(Generation)


class PostgresLeases:
    """LeaseStore on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def begin_generation(self, instance_id: str) -> Generation:
        [generation] = await self._query.rows(
            _GENERATION, "SELECT * FROM leasehold.begin_generation(%s)", instance_id
        )
        return generation

    async def acquire_lease(
        self, lease_name: str, holder_id: str, lease_seconds: float, grace_seconds: float = 0
    ) -> Acquisition:

        def acquisition(*, acquired: bool, seconds_left: float, **columns: Any) -> Acquisition:  # noqa: ANN401
            lease = Lease(name=lease_name, **columns)
            return Acquisition(is_ours=acquired, lease=lease, seconds_left=seconds_left)

        [answer] = await self._query.rows(
            rows_of(acquisition),
            "SELECT acquired, holder_id, lease_epoch AS epoch, expires_at, grace_expires_at,"
            "       extract(epoch FROM expires_at - clock_timestamp())::float8 AS seconds_left"
            "  FROM leasehold.acquire_lease(%s, %s, %s, %s)",
            lease_name,
            holder_id,
            lease_seconds,
            grace_seconds,
        )
        return answer

    async def renew_lease(
        self, lease: Lease, lease_seconds: float, grace_seconds: float = 0
    ) -> datetime:
        return await self._query.value(
            "SELECT leasehold.renew_lease(%s, %s, %s, %s, %s)",
            *fence(lease),
            lease_seconds,
            grace_seconds,
            lease_name=lease.name,
        )

    async def release_lease(self, lease: Lease) -> bool:
        return await self._query.value("SELECT leasehold.release_lease(%s, %s, %s)", *fence(lease))

    async def renew_instance(
        self,
        instance_id: str,
        role: str,
        stream_targets: Sequence[str],
        detail: Mapping[str, Any],
        alive_seconds: float,
        streams_held: Sequence[int] | None = None,
        streams_wanted: Sequence[int] | None = None,
    ) -> None:
        """Report that an instance is alive, its role, and its streams by target."""
        await self._query.value(
            "SELECT leasehold.renew_instance("
            "%s, %s, %s::text[], %s::jsonb, %s, %s::integer[], %s::integer[])",
            instance_id,
            role,
            list(stream_targets),
            json_argument(dict(detail)),
            alive_seconds,
            None if streams_held is None else list(streams_held),
            None if streams_wanted is None else list(streams_wanted),
        )

    async def renew_api_instance(
        self, instance_id: str, detail: Mapping[str, Any], alive_seconds: float
    ) -> None:
        await self._query.value(
            "SELECT leasehold.renew_api_instance(%s, %s::jsonb, %s)",
            instance_id,
            json_argument(dict(detail)),
            alive_seconds,
        )

    async def release_instance(self, instance_id: str) -> bool:
        return await self._query.value("SELECT leasehold.release_instance(%s)", instance_id)

    async def record_leader_heartbeat(self, lease: Lease, detail: Mapping[str, Any]) -> None:
        await self._query.value(
            "SELECT leasehold.record_leader_heartbeat(%s, %s, %s, %s::jsonb)",
            *fence(lease),
            json_argument(dict(detail)),
            lease_name=lease.name,
        )


def fence(lease: Lease) -> tuple[str, str, int]:
    """Return the fence of every write under a lease."""
    return lease.name, lease.holder_id, lease.epoch


def fences(holder_id: str, leases: Sequence[Lease]) -> tuple[str, list[str], list[int]]:
    """Return the fences of several leases of one holder."""
    return holder_id, [lease.name for lease in leases], [lease.epoch for lease in leases]
