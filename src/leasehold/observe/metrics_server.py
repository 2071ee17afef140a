"""Serves the metrics of a process over HTTP, in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MetricsServer:
    """Serves metrics in a thread. On loopback by default: metrics reveal business activity."""

    def __init__(self, registry: CollectorRegistry, port: int, host: str) -> None:
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(f"cannot serve metrics on {host}:{port}: {error}") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving; returns when the port is free again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
