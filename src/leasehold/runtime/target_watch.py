"""The target watch: says which targets this instance does not serve, in its log and its metrics.

An instance leaves a target out if its contract cannot be read or opened, if no executor of this
release has its scope, or if `--targets` does not name it. Its intents then wait in the database.
"""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from typing import TYPE_CHECKING

from leasehold.domain.contract import EXECUTED_SCOPES
from leasehold.observe.logs import get_logger
from leasehold.service.service import Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from leasehold.domain.timing import Timings
    from leasehold.executor.targets import Targets
    from leasehold.observe.metrics import Metrics

_LOG = get_logger(__name__)


class TargetWatch:
    """The service that compares what is published with what is served. It reads no database."""

    name = "target watch"

    def __init__(
        self,
        targets: Targets,
        cluster_targets: Targets,
        selected: Collection[str] | None,
        metrics: Metrics,
        timings: Callable[[], Timings],
    ) -> None:
        self.wake = asyncio.Event()
        self._targets = targets
        self._cluster_targets = cluster_targets
        self._selected = selected
        self._metrics = metrics
        self._timings = timings
        self._served: set[str] = set()
        self._published: set[str] = set()
        self._refused: set[str] = set()
        self._unpublished: set[str] = set()
        self._is_empty = False

    async def step(self) -> Pause:
        """Set the metrics, and log what has changed."""
        published = self._targets.published
        served = self._targets.current.keys() | self._cluster_targets.current.keys()
        idle = {name for name, scope in published.items() if scope and scope not in EXECUTED_SCOPES}
        for target in self._served - served:
            self._metrics.forget_breaker(target)
        for target in self._published - published.keys():
            self._metrics.forget_target(target)
        self._served, self._published = served, set(published)
        for target in published:
            is_served = target in served and target not in idle
            self._metrics.target_served(target, is_served=is_served)
        self._report_refused({name: published[name] for name in idle if self._is_selected(name)})
        self._report_unpublished(published.keys())
        self._report_empty(is_empty=not served)
        return Pause(self._timings().contracts_seconds)

    def _report_refused(self, scopes: Mapping[str, str | None]) -> None:
        for target in sorted(scopes.keys() - self._refused):
            error = f"this release does not execute scope {scopes[target]}"
            _LOG.error("target_refused", target=target, error=error)
        self._refused = set(scopes)

    def _report_unpublished(self, published: Collection[str]) -> None:
        unpublished = set(self._selected or ()) - set(published)
        for target in sorted(unpublished - self._unpublished):
            nearest = get_close_matches(target, published, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else "run `leasehold targets apply`"
            _LOG.warning("target_not_published", target=target, advice=advice)
        self._unpublished = unpublished

    def _report_empty(self, *, is_empty: bool) -> None:
        if is_empty and not self._is_empty:
            _LOG.warning("targets_missing", advice="this instance submits nothing until it has one")
        self._is_empty = is_empty

    def _is_selected(self, target: str) -> bool:
        return self._selected is None or target in self._selected
