"""A network between a worker and its database that can be cut, or swallow everything, and heal."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class TcpProxy:
    """`async with TcpProxy(url) as proxy`, then connect to `proxy.through(url)`."""

    def __init__(self, url: str) -> None:
        server = conninfo_to_dict(url)
        self._host, self._port = str(server["host"]), int(str(server["port"]))
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._flows.set()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def through(self, url: str) -> str:
        return make_conninfo(url, host="127.0.0.1", port=self.port)

    def cut(self) -> None:
        """Reset every connection, and refuse new ones."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def blackhole(self) -> None:
        """Keep every connection open, and let nothing through in either direction."""
        self._flows.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._flows.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        behind_reader, behind_writer = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, behind_writer}
        await asyncio.gather(self._pump(reader, behind_writer), self._pump(behind_reader, writer))
        self._open -= {writer, behind_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                await self._flows.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()
