"""Leasehold with one elected leader instead of competing workers; it writes no claims."""

from __future__ import annotations

from benchmarks import peer_leasehold
from benchmarks.peer_engine import QUEUE
from leasehold.domain.contract import Contract
from leasehold.gateway.python.terms import PythonTerms
from leasehold.store.postgres.migrate import migrate


class Engine(peer_leasehold.Engine):
    """The same, except for the contract's scope."""

    settings = f"scope=cluster, {peer_leasehold.Engine.settings}"

    async def install(self, url: str) -> None:
        migrate(url)
        await peer_leasehold.publish(
            url,
            Contract(
                target=QUEUE,
                scope="cluster",
                guarantee="keyed",
                gateway=PythonTerms(function="benchmarks.peer_leasehold:accept"),
                concurrency=peer_leasehold.CONCURRENCY,
                call_timeout_seconds=1,
                connect_timeout_seconds=0.5,
            ),
        )
