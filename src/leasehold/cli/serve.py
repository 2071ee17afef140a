"""`leasehold serve`: an instance with the HTTP API. Run as many as you like."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from leasehold.cli.options import INSTANCE_SETTINGS, embedded_database, takes_settings
from leasehold.cli.worker import exit_past_stuck_calls, read_and_apply, reload_settings
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.timing import END_SECONDS
from leasehold.observe.logs import get_logger
from leasehold.runtime.database_wait import DatabaseWait, StopRequested
from leasehold.runtime.instance import Instance
from leasehold.runtime.process import on_signals, run
from leasehold.runtime.registration import ApiRegistration, ScopeState, new_worker_id
from leasehold.web.app import create_app
from leasehold.web.server import Address, HttpServer
from leasehold.web.service import WebService, WebSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leasehold.config import Settings
    from leasehold.store.database import RoleStores

# The role for submitting; each API scope has a role of its own.
_EXECUTOR_ROLE = "leasehold_executor"
# For requests in progress at shutdown, at most. Long polls end before.
_GRACE_SECONDS_MAX = 15.0

_LOG = get_logger(__name__)


@takes_settings(
    *INSTANCE_SETTINGS,
    *("http_host", "http_port", "http_tls_cert", "http_tls_key", "http_auth", "execute"),
    *("http_drain_seconds", "http_requests_max", "http_waiting_max"),
)
def serve(read: Callable[[], Settings], settings_file: Path | None) -> None:
    """Run an instance with the HTTP API: accept and submit intents, until SIGTERM or Ctrl-C.

    A second signal exits at once. The other options of `leasehold worker` can be set as environment
    variables or in the settings file, e.g. LEASEHOLD_POLL_SECONDS. Defaults are in parentheses.
    """
    with embedded_database(read) as read_all:
        run(run_serve(read_all, settings_file=settings_file))


async def run_serve(
    read: Callable[[], Settings],
    make: Callable[[Settings], Instance] = Instance,
    settings_file: Path | None = None,
) -> None:
    """Run an instance with its API until a signal; SIGHUP reads the settings again."""
    settings = read_and_apply(read, settings_file)
    address = _address(settings)
    if settings.standalone and not settings.execute:
        raise InvalidArgument(
            "--standalone cannot be used with --no-execute: a leader must submit intents"
        )
    grace_seconds = _grace_seconds(settings)
    instance = make(_as_executor(settings)) if settings.execute else None
    stop = asyncio.Event()

    def reload() -> None:
        if instance is not None:
            reload_settings(instance, lambda: _as_executor(read()))

    def stop_seconds() -> float:
        timings = settings.timings() if instance is None else instance.timings()
        return timings.stop_seconds

    server = HttpServer(address, grace_seconds=grace_seconds)
    with suppress(StopRequested), on_signals(stop.set, reload, stop_seconds):
        await _serve(settings, server, instance, stop)
    if instance is not None:
        exit_past_stuck_calls(instance)


async def _serve(
    settings: Settings, server: HttpServer, instance: Instance | None, stop: asyncio.Event
) -> None:
    """Start in order. At the stop, end the calls of the instance while requests are still answered:
    both together may take one lease.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        wait = DatabaseWait(settings.start_seconds, stop)
        executes = instance is not None and settings.database_role is None
        more_roles = ("leasehold_executor",) if executes else ()
        stores = await wait.retry(
            lambda: stack.enter_async_context(
                settings.database().role_stores(more_roles=more_roles)
            )
        )
        if instance is None:
            await wait.retry(stores.check_schema)
        else:
            await instance.start(wait)
            stack.push_async_callback(instance.drain)
        service = _service(settings, stores, instance)
        await wait.retry(lambda: stack.enter_async_context(service))
        if instance is None:
            seconds = settings.timings().heartbeat_seconds
            registration = ApiRegistration(stores.api, service.settings.instance_id, seconds)
            await stack.enter_async_context(registration)
        await server.start(create_app(service))
        _LOG.info("server_started", url=server.url, worker_id=service.settings.instance_id)
        await server.until(stop)
        service.drain()
        _LOG.info("drain_started", worker_id=service.settings.instance_id)
        async with asyncio.TaskGroup() as stopping:
            if instance is not None:
                stopping.create_task(instance.drain())
            await asyncio.sleep(settings.http_drain_seconds)
            service.end_streams()
            await server.stop()


def _service(settings: Settings, stores: RoleStores, instance: Instance | None) -> WebService:
    return WebService(
        stores,
        WebSettings(
            instance_id=_new_id(settings) if instance is None else instance.worker_id,
            is_open=not settings.http_auth,
            requests_max=settings.http_requests_max,
            waiting_max=settings.http_waiting_max,
            token_seconds=settings.http_token_seconds,
            log_format=settings.log_format,
            log_level=settings.log_level,
        ),
        metrics=None if instance is None else instance.metrics,
        scopes=_no_scopes if instance is None else instance.scopes,
    )


def _new_id(settings: Settings) -> str:
    """Name an instance that only serves the API: a row of its own in `instances`, or the death of
    one that executes, under the same name, could be taken for its death, or hide it.
    """
    return f"{settings.holder_id}/api" if settings.holder_id else new_worker_id()


def _no_scopes() -> dict[str, ScopeState]:
    return {"item": ScopeState(mode="off")}


def _address(settings: Settings) -> Address:
    address = Address(
        host=settings.http_host,
        port=settings.http_port,
        tls_cert=settings.http_tls_cert,
        tls_key=settings.http_tls_key,
    )
    if not settings.http_auth and not address.is_loopback:
        raise InvalidArgument(
            f"--no-auth cannot be used on {address.host}: anyone who can connect would have full "
            "access. Listen on 127.0.0.1, or require tokens."
        )
    return address


def _grace_seconds(settings: Settings) -> float:
    """Return how long requests in progress may take after the drain."""
    left = settings.timings().stop_seconds - END_SECONDS - settings.http_drain_seconds
    if left < 0:
        raise InvalidArgument(
            f"drain_seconds ({settings.http_drain_seconds:g}) must not exceed "
            f"{settings.http_drain_seconds + left:g}: an instance stops within one lease "
            f"({settings.timings().stop_seconds:g} seconds), the last {END_SECONDS:g} of which are "
            "for open requests and results"
        )
    return min(_GRACE_SECONDS_MAX, left)


def _as_executor(settings: Settings) -> Settings:
    if settings.database_role is not None:
        return settings
    return settings.model_copy(update={"database_role": _EXECUTOR_ROLE})
