"""A TCP proxy before the database: it cuts or blackholes connections, drops answers, and heals."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# The first bytes of a connection hold its parameters, such as application_name.
_FIRST_BYTES = 2048


class TcpProxy:
    """`async with TcpProxy(url) as proxy`, then connect to `proxy.through(url)`.

    With `only`, faults hit only connections whose first bytes contain it.
    """

    def __init__(self, url: str, only: bytes = b"") -> None:
        server = conninfo_to_dict(url)
        self._host, self._port = str(server["host"]), int(str(server["port"]))
        self._only = only
        self._server: asyncio.Server | None = None
        self._open: set[_Pipe] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._drops_answers = False
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._only = b""
        self.cut()
        self._flows.set()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def through(self, url: str) -> str:
        return make_conninfo(url, host="127.0.0.1", port=self.port)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._is_cut = True
        for pipe in self._affected():
            pipe.client.transport.abort()
            pipe.server.transport.abort()

    def blackhole(self) -> None:
        """Keep every connection open but pass no bytes in either direction."""
        self._flows.clear()

    def swallow_answers(self) -> None:
        """Pass what the clients send, and drop what the server answers."""
        self._drops_answers = True

    def cut_behind(self) -> None:
        """Reset the server's end of every connection without the client noticing."""
        self.blackhole()
        for pipe in self._affected():
            pipe.server.transport.abort()

    def heal(self) -> None:
        self._is_cut = False
        self._drops_answers = False
        self._flows.set()

    def _affected(self) -> list[_Pipe]:
        return [pipe for pipe in self._open if self._only in pipe.first_bytes]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut and not self._only:
            writer.transport.abort()
            return
        behind_reader, behind_writer = await asyncio.open_connection(self._host, self._port)
        pipe = _Pipe(writer, behind_writer)
        self._open.add(pipe)
        await asyncio.gather(
            self._pump(pipe, reader, behind_writer), self._pump(pipe, behind_reader, writer)
        )
        self._open.discard(pipe)

    async def _pump(
        self, pipe: _Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                if writer is pipe.server and len(pipe.first_bytes) < _FIRST_BYTES:
                    pipe.first_bytes += piece
                await self._let_through(pipe)
                if self._drops_answers and writer is pipe.client:
                    continue
                writer.write(piece)
                await writer.drain()
        await self._let_through(pipe)  # the close is held back too
        writer.close()

    async def _let_through(self, pipe: _Pipe) -> None:
        if self._only not in pipe.first_bytes:
            return
        if self._is_cut:
            pipe.client.transport.abort()
            pipe.server.transport.abort()
        await self._flows.wait()


class _Pipe:
    """A proxied connection: its two ends and its first bytes."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.first_bytes = b""
