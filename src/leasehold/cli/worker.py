"""`leasehold worker`: an instance without the HTTP API. Run as many as you like."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.cli.options import (
    INSTANCE_SETTINGS,
    embedded_database,
    ignored_advice,
    takes_settings,
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


@takes_settings(
    *INSTANCE_SETTINGS,
    *("lease_seconds", "heartbeat_seconds", "reaper_seconds", "shutdown_seconds", "poll_seconds"),
    *("metrics_port", "metrics_host", "reaper"),
)
def worker(read: Callable[[], Settings], settings_file: Path | None) -> None:
    """Run an instance without the HTTP API: submit due intents, until SIGTERM or Ctrl-C.

    A second signal exits at once. Each option is also an environment variable: --poll-seconds is
    LEASEHOLD_POLL_SECONDS. Defaults are in parentheses.
    """
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
