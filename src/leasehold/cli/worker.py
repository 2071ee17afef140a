"""`leasehold worker`: claim what is due and submit it, beside any number of others."""

from __future__ import annotations

import os
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
from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import configure_logs, get_logger
from leasehold.runtime import event_loop
from leasehold.runtime.instance import Instance
from leasehold.runtime.shutdown import on_signals

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = get_logger(__name__)


def worker(
    database_url: DatabaseUrl = None,
    *,
    targets: Annotated[
        str | None, option("Serve only these targets, separated by commas (all).")
    ] = None,
    concurrency: Concurrency = None,
    lease_seconds: Annotated[
        float | None, option("Lease items for at most this long (each contract's own).")
    ] = None,
    heartbeat_seconds: Annotated[
        float | None, option("Renew leases this often; less than a third of the lease (5).")
    ] = None,
    reaper_seconds: Annotated[
        float | None, option("Repair this often; less than the lease (10).")
    ] = None,
    shutdown_seconds: Annotated[
        float | None, option("Let calls end for this long; at most the lease (20).")
    ] = None,
    poll_seconds: Annotated[
        float | None, option("Look for work at least this often when idle (1).")
    ] = None,
    metrics_port: Annotated[
        int | None, option("Serve Prometheus metrics on this port (none).")
    ] = None,
    metrics_host: Annotated[str | None, option("Serve them on this address (127.0.0.1).")] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    reaper: Annotated[
        bool | None,
        option("Repair what dead workers left; --no-reaper needs another instance that does."),
    ] = None,
    elector: Elector = None,
    standalone: Standalone = None,
    settings_file: SettingsFile = None,
) -> None:
    """Claim due items and submit them, until SIGTERM or Ctrl-C; a second one is immediate."""

    def read() -> Settings:
        return read_settings(
            settings_file,
            database_url=database_url,
            targets=tuple(targets.split(",")) if targets else None,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            reaper_seconds=reaper_seconds,
            shutdown_seconds=shutdown_seconds,
            poll_seconds=poll_seconds,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            log_format=log_format,
            log_level=log_level,
            reaper=reaper,
            elector=elector,
            standalone=standalone,
        )

    event_loop.run(run_worker(read))


async def run_worker(
    read: Callable[[], Settings], make: Callable[[Settings], Instance] = Instance
) -> None:
    """Run an instance until a signal; read its settings again on SIGHUP."""
    settings = read()
    configure_logs(settings.log_format, settings.log_level)
    instance = make(settings)

    def reload() -> None:
        try:
            instance.apply(read())
        except LeaseholdError as error:
            _LOG.error("settings_refused", error=str(error), advice="the former ones stay")

    server = None
    if settings.metrics_port is not None:
        server = instance.metrics.serve(settings.metrics_port, settings.metrics_host)
        _LOG.info("metrics_served", port=server.port, worker_id=instance.worker_id)
    try:
        with on_signals(instance.request_stop, reload):
            async with instance:
                await instance.run()
    finally:
        if server is not None:
            server.close()
    if instance.stuck_calls:
        _LOG.warning("calls_left_behind", calls=instance.stuck_calls, worker_id=instance.worker_id)
        # Everything of ours is written and closed; only a user's function does not let go.
        os._exit(0)
