"""`leasehold worker`: an instance without the HTTP API. Run as many as you like."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from leasehold.cli.options import (
    AppDir,
    Concurrency,
    DatabaseUrl,
    DataDir,
    Elector,
    Embedded,
    LogFormat,
    LogLevel,
    Observer,
    SettingsFile,
    Standalone,
    StartSeconds,
    StreamClaimSeconds,
    StreamGraceSeconds,
    StreamLingerSeconds,
    Targets,
    embedded_database,
    ignored_advice,
    read_options,
    setting,
    use_app_dir,
)
from leasehold.config import ignored_variables
from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import configure_logs, get_logger
from leasehold.runtime.database_wait import StopRequested
from leasehold.runtime.instance import Instance
from leasehold.runtime.process import exit_now, on_signals, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leasehold.config import Settings

_LOG = get_logger(__name__)


def worker(
    database_url: DatabaseUrl = None,
    *,
    embedded: Embedded = None,
    data_dir: DataDir = None,
    targets: Targets = None,
    app_dir: AppDir = None,
    observer: Observer = None,
    concurrency: Concurrency = None,
    lease_seconds: Annotated[
        float | None, setting("Upper bound of a claim's lease (as in each contract).")
    ] = None,
    heartbeat_seconds: Annotated[
        float | None, setting("Interval of lease renewals; below a third of the lease (5).")
    ] = None,
    reaper_seconds: Annotated[
        float | None, setting("Interval of the reaper; below the lease (10).")
    ] = None,
    shutdown_seconds: Annotated[
        float | None, setting("Time for running calls at shutdown; at most the lease (20).")
    ] = None,
    poll_seconds: Annotated[
        float | None, setting("Longest pause between two looks for work (1).")
    ] = None,
    metrics_port: Annotated[
        int | None, setting("Serve Prometheus metrics on this port (off).")
    ] = None,
    metrics_host: Annotated[
        str | None, setting("Serve metrics on this address (127.0.0.1).")
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    reaper: Annotated[
        bool | None,
        setting("Recover the work of dead instances. --no-reaper needs another that does (on)."),
    ] = None,
    elector: Elector = None,
    standalone: Standalone = None,
    stream_claim_seconds: StreamClaimSeconds = None,
    stream_grace_seconds: StreamGraceSeconds = None,
    stream_linger_seconds: StreamLingerSeconds = None,
    start_seconds: StartSeconds = None,
    settings_file: SettingsFile = None,
) -> None:
    """Run an instance without the HTTP API: submit due intents, until SIGTERM or Ctrl-C.

    A second signal exits at once. Each option is also an environment variable: --poll-seconds is
    LEASEHOLD_POLL_SECONDS. Defaults are in parentheses.
    """

    def read() -> Settings:
        return read_options(
            settings_file,
            database_url=database_url,
            embedded=embedded,
            data_dir=data_dir,
            targets=targets,
            app_dir=app_dir,
            observer=observer,
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
            stream_claim_seconds=stream_claim_seconds,
            stream_grace_seconds=stream_grace_seconds,
            stream_linger_seconds=stream_linger_seconds,
            start_seconds=start_seconds,
        )

    with embedded_database(read) as read_all:
        run(run_worker(read_all, settings_file=settings_file))


async def run_worker(
    read: Callable[[], Settings],
    make: Callable[[Settings], Instance] = Instance,
    settings_file: Path | None = None,
) -> None:
    """Run an instance until a signal; SIGHUP reads the settings again."""
    settings = read_and_apply(read, settings_file)
    instance = make(settings)
    server = None
    if settings.metrics_port is not None:
        server = instance.metrics.serve(settings.metrics_port, settings.metrics_host)
        _LOG.info("metrics_served", port=server.port, worker_id=instance.worker_id)
    try:
        with (
            suppress(StopRequested),
            on_signals(
                instance.request_stop,
                lambda: reload_settings(instance, read),
                lambda: instance.timings().stop_seconds,
            ),
        ):
            async with instance:
                await instance.run()
    finally:
        if server is not None:
            server.close()
    exit_past_stuck_calls(instance)


def read_and_apply(read: Callable[[], Settings], settings_file: Path | None) -> Settings:
    """Read the settings, and apply those of the whole process: its logs and its import path."""
    settings = read()
    configure_logs(settings.log_format, settings.log_level)
    for name, meant in ignored_variables(settings_file).items():
        _LOG.warning("variable_ignored", variable=name, advice=ignored_advice(meant))
    if unverified := settings.database().unverified_hosts:
        _LOG.warning(
            "database_unverified",
            hosts=unverified,
            advice="nobody checks who answers there: set LEASEHOLD_DATABASE_TLS=verify-full",
        )
    use_app_dir(settings.app_dir)
    return settings


def reload_settings(instance: Instance, read: Callable[[], Settings]) -> None:
    """Apply new settings to a running instance, or keep the old ones if they are wrong."""
    try:
        instance.apply(read())
    except LeaseholdError as error:
        _LOG.error("settings_refused", error=str(error), advice="the old settings stay in force")


def exit_past_stuck_calls(instance: Instance) -> None:
    """End the process if a user's function does not return; all our own work is done by now."""
    if instance.stuck_calls:
        _LOG.warning("calls_abandoned", calls=instance.stuck_calls, worker_id=instance.worker_id)
        exit_now(0)
