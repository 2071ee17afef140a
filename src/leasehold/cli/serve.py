"""`leasehold serve`: an instance that takes intents over HTTP, beside any number of others."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path  # noqa: TC003 (Typer reads the annotation)
from typing import TYPE_CHECKING, Annotated

from leasehold.cli.instance_options import (
    Concurrency,
    Elector,
    LogFormat,
    LogLevel,
    SettingsFile,
    Standalone,
    option,
)
from leasehold.cli.migrate import DatabaseUrl  # noqa: TC001 (Typer reads the annotation)
from leasehold.config import Settings, read_settings
from leasehold.domain.errors import InvalidArgument, LeaseholdError
from leasehold.observe.logs import configure_logs, get_logger
from leasehold.runtime import event_loop
from leasehold.runtime.instance import Instance, ScopeState
from leasehold.runtime.registration import new_worker_id
from leasehold.runtime.shutdown import on_signals
from leasehold.store.postgres.roles import RoleStores
from leasehold.web.app import create_app
from leasehold.web.server import Address, HttpServer
from leasehold.web.service import WebService, WebSettings

if TYPE_CHECKING:
    from collections.abc import Callable

# What this instance submits, it submits with the rights of this role alone.
_EXECUTOR = "leasehold_executor"
# For answers that are on their way; who waits for an intent is let go before.
_GRACE_SECONDS = 15.0

_LOG = get_logger(__name__)


def serve(
    database_url: DatabaseUrl = None,
    *,
    host: Annotated[str | None, option("Serve on this address (127.0.0.1).")] = None,
    port: Annotated[int | None, option("Serve on this port (8080); 0 takes any.")] = None,
    tls_cert: Annotated[
        Path | None, option("Serve HTTPS with this certificate, and what leads to its authority.")
    ] = None,
    tls_key: Annotated[Path | None, option("The key of that certificate.")] = None,
    auth: Annotated[
        bool | None, option("Ask for a token; --no-auth only on loopback.", "--auth/--no-auth")
    ] = None,
    execute: Annotated[
        bool | None,
        option("Submit intents too; --no-execute leaves that to others.", "--execute/--no-execute"),
    ] = None,
    drain_seconds: Annotated[
        float | None,
        option("Answer for so long while /readyz already sends others away (5)."),
    ] = None,
    requests_max: Annotated[int | None, option("Answer so many requests at once (1000).")] = None,
    waiting_max: Annotated[
        int | None, option("Let so many intents wait for the database (10000).")
    ] = None,
    targets: Annotated[
        str | None, option("Submit for these targets only, separated by commas (all).")
    ] = None,
    concurrency: Concurrency = None,
    elector: Elector = None,
    standalone: Standalone = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    settings_file: SettingsFile = None,
) -> None:
    """Take intents over HTTP and submit them, until SIGTERM or Ctrl-C.

    A second signal is immediate. All else that `leasehold worker` can be told, this is told by the
    environment or the settings file.
    """

    def read() -> Settings:
        return read_settings(
            settings_file,
            database_url=database_url,
            http_host=host,
            http_port=port,
            http_tls_cert=tls_cert,
            http_tls_key=tls_key,
            http_auth=auth,
            http_drain_seconds=drain_seconds,
            http_requests_max=requests_max,
            http_waiting_max=waiting_max,
            execute=execute,
            targets=tuple(targets.split(",")) if targets else None,
            concurrency=concurrency,
            elector=elector,
            standalone=standalone,
            log_format=log_format,
            log_level=log_level,
        )

    event_loop.run(run_serve(read))


async def run_serve(
    read: Callable[[], Settings], make: Callable[[Settings], Instance] = Instance
) -> None:
    """Run an instance with its API until a signal; read its settings again on SIGHUP."""
    settings = read()
    configure_logs(settings.log_format, settings.log_level)
    address = _address(settings)
    if settings.standalone and not settings.execute:
        raise InvalidArgument(
            "--standalone is refused with --no-execute: who submits nothing leads no group"
        )
    instance = make(_as_executor(settings)) if settings.execute else None
    stop = asyncio.Event()

    def reload() -> None:
        if instance is None:
            return
        try:
            instance.apply(_as_executor(read()))
        except LeaseholdError as error:
            _LOG.error("settings_refused", error=str(error), advice="the former ones stay")

    with on_signals(stop.set, reload):
        await _serve(settings, address, instance, stop)
    if instance is not None and instance.stuck_calls:
        _LOG.warning("calls_left_behind", calls=instance.stuck_calls, worker_id=instance.worker_id)
        # Everything of ours is written and closed; only a user's function does not let go.
        os._exit(0)


async def _serve(
    settings: Settings, address: Address, instance: Instance | None, stop: asyncio.Event
) -> None:
    """What is opened last ends first: so the instance works until the last answer is given."""
    async with AsyncExitStack() as opened:
        server = HttpServer(address, grace_seconds=_GRACE_SECONDS)
        opened.push_async_callback(server.stop)
        stores = await opened.enter_async_context(
            RoleStores(settings.required_database_url(), settings.pool())
        )
        if instance is not None:
            await opened.enter_async_context(instance)
        service = await opened.enter_async_context(_service(settings, stores, instance))
        await server.start(create_app(service))
        _LOG.info("serving", url=server.url, worker_id=service.settings.instance_id)
        await server.until(stop)
        service.drain()
        _LOG.info("draining", worker_id=service.settings.instance_id)
        await asyncio.sleep(settings.http_drain_seconds)
        service.end_streams()
        await server.stop()


def _service(settings: Settings, stores: RoleStores, instance: Instance | None) -> WebService:
    return WebService(
        stores,
        WebSettings(
            instance_id=new_worker_id() if instance is None else instance.worker_id,
            is_open=not settings.http_auth,
            requests_max=settings.http_requests_max,
            waiting_max=settings.http_waiting_max,
            token_seconds=settings.http_token_seconds,
            log_format=settings.log_format,
            log_level=settings.log_level,
        ),
        metrics=None if instance is None else instance.metrics,
        scopes=_nothing if instance is None else instance.scopes,
    )


def _nothing() -> dict[str, ScopeState]:
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
            f"--no-auth is refused on {address.host}: everybody who can come there could do "
            "everything; serve on 127.0.0.1, or ask for tokens"
        )
    return address


def _as_executor(settings: Settings) -> Settings:
    if settings.database_role is not None:
        return settings
    return settings.model_copy(update={"database_role": _EXECUTOR})
