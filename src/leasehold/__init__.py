"""Leasehold submits intents to the world outside a database, under leases that it grants.

These are the public names. Each is imported on first use: a process that only enqueues neither
loads nor needs the dependencies of a worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from leasehold.extras import install_hint

if TYPE_CHECKING:
    from leasehold.client.async_client import AsyncClient
    from leasehold.client.sync_client import Client
    from leasehold.config import Settings, read_settings
    from leasehold.domain.errors import LeaseholdError
    from leasehold.domain.intent import NewIntent, Status
    from leasehold.domain.outcome import (
        Accepted,
        Deferred,
        NotFound,
        Rejected,
        Retryable,
        Submitted,
        Unknown,
    )
    from leasehold.executor.observer import ObservedIntent, Observer
    from leasehold.gateway.errors import NotSent
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.python import gateway_function
    from leasehold.gateway.registry import Contract
    from leasehold.intake.intake import Intake
    from leasehold.intake.transactional import (
        aenqueue_in,
        aenqueue_many_in,
        enqueue_in,
        enqueue_many_in,
    )
    from leasehold.runtime.instance import Instance
    from leasehold.runtime.leadership import Leader, leadership

__all__ = [
    "Accepted",
    "AsyncClient",
    "Client",
    "Contract",
    "Deferred",
    "Instance",
    "Intake",
    "Leader",
    "LeaseholdError",
    "NewIntent",
    "NotFound",
    "NotSent",
    "ObservedIntent",
    "Observer",
    "Rejected",
    "Retryable",
    "Settings",
    "Status",
    "Submission",
    "Submitted",
    "Unknown",
    "aenqueue_in",
    "aenqueue_many_in",
    "enqueue_in",
    "enqueue_many_in",
    "gateway_function",
    "leadership",
    "read_settings",
]

_HOMES = {
    "leasehold.client.async_client": ("AsyncClient",),
    "leasehold.client.sync_client": ("Client",),
    "leasehold.config": ("Settings", "read_settings"),
    "leasehold.domain.errors": ("LeaseholdError",),
    "leasehold.domain.intent": ("NewIntent", "Status"),
    "leasehold.domain.outcome": (
        *("Accepted", "Deferred", "NotFound", "Rejected", "Retryable", "Submitted", "Unknown"),
    ),
    "leasehold.executor.observer": ("ObservedIntent", "Observer"),
    "leasehold.gateway.errors": ("NotSent",),
    "leasehold.gateway.protocol": ("Submission",),
    "leasehold.gateway.python": ("gateway_function",),
    "leasehold.gateway.registry": ("Contract",),
    "leasehold.intake.intake": ("Intake",),
    "leasehold.intake.transactional": (
        *("aenqueue_in", "aenqueue_many_in", "enqueue_in", "enqueue_many_in"),
    ),
    "leasehold.runtime.instance": ("Instance",),
    "leasehold.runtime.leadership": ("Leader", "leadership"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return _load(home, name)
    raise AttributeError(f"module 'leasehold' has no attribute {name!r}")


def _load(home: str, name: str) -> object:
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        raise ImportError(
            f"leasehold.{name} cannot be imported: {hint}", name=error.name
        ) from error
