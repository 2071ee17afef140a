"""`--embedded`: a private PostgreSQL instead of a database URL.

The first process that uses it starts it, and the last one stops it. So a worker, a server and the
other commands can share it, each with LEASEHOLD_EMBEDDED=true.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import SecretStr

from leasehold.domain.errors import LeaseholdError
from leasehold.observe.logs import configure_logs, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from leasehold.config import Settings
    from leasehold.embedded.server import EmbeddedPostgres

# How often a long-running process checks that the server still runs.
CHECK_SECONDS = 2.0

_LOG = get_logger(__name__)


@contextmanager
def embedded_database(read: Callable[[], Settings]) -> Generator[Callable[[], Settings]]:
    """Yield `read` with the URL of the embedded database, if the settings ask for it.

    While the block runs, a server that dies is restarted.
    """
    settings = read()
    if not settings.embedded:
        yield read
        return
    configure_logs(settings.log_format, settings.log_level)
    server = _start(settings, lambda step: _LOG.info("embedded_database_progressed", step=step))
    is_over = threading.Event()
    guard = threading.Thread(target=_keep_running, args=(server, is_over), daemon=True)
    try:
        _LOG.info(
            "embedded_database_started",
            port=server.port,
            advice="other commands use it with LEASEHOLD_EMBEDDED=true",
        )
        guard.start()
        yield lambda: _with_url(read(), server.url)
    finally:
        is_over.set()
        if guard.is_alive():
            guard.join()
        server.stop()


def with_embedded_database(settings: Settings) -> Settings:
    """Return the settings with the URL of the embedded database, which runs until we exit."""
    return _with_url(settings, _start(settings, None).url)


def _start(settings: Settings, progress: Callable[[str], None] | None) -> EmbeddedPostgres:
    # Imported late: most processes have a database of their own.
    from leasehold.embedded.server import EmbeddedPostgres
    from leasehold.store.postgres.migrate import migrate

    server = EmbeddedPostgres(settings.data_dir, progress=progress).start()
    try:
        migrate(server.url)
    except BaseException:
        server.stop()
        raise
    return server


def _with_url(settings: Settings, url: str) -> Settings:
    """Set the URL. A process with its own database is standalone, unless it was told otherwise."""
    is_chosen = "standalone" in settings.model_fields_set or not settings.execute
    return settings.model_copy(
        update={
            "database_url": SecretStr(url),
            "standalone": settings.standalone if is_chosen else True,
        }
    )


def _keep_running(server: EmbeddedPostgres, is_over: threading.Event) -> None:
    port = server.port
    while not is_over.wait(CHECK_SECONDS):
        try:
            was_running = server.is_running()
            server.ensure_running()
        except LeaseholdError as error:
            _LOG.error("embedded_database_failed", error=str(error))
            continue
        if server.port != port:
            _LOG.error("embedded_database_moved", port=server.port, advice="restart this process")
        elif not was_running:
            _LOG.warning("embedded_database_restarted", port=port)
