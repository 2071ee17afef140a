"""A stranger that listens on the port of the stopped server never learns the password."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.embedded.workspace import Workspace

# What a server may ask for in the place of SCRAM; 0: nothing, everybody is let in.
REQUESTS = {
    "clear text": struct.pack("!cII", b"R", 8, 3),
    "MD5": struct.pack("!cII4s", b"R", 12, 5, b"salt"),
    "nothing": struct.pack("!cII", b"R", 8, 0) + struct.pack("!cIc", b"Z", 5, b"I"),
}


class Impostor:
    """Listens on a port, speaks PostgreSQL's protocol, and keeps what it is sent."""

    def __init__(self, port: int, request: bytes):
        self.received = b""
        self.connections = 0
        self._request = request
        self._socket = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(5)
                try:
                    self._talk(connection)
                except OSError:
                    continue

    def _talk(self, connection: socket.socket) -> None:
        while True:
            length, code = struct.unpack("!II", connection.recv(8, socket.MSG_WAITALL))
            connection.recv(length - 8, socket.MSG_WAITALL)
            if code == 3 << 16:
                break
            connection.sendall(b"N")  # no TLS, no Kerberos
        connection.sendall(self._request)
        while part := connection.recv(4096):
            self.received += part

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_impostor_on_the_port_of_the_server_gets_no_password(
    workspace: Workspace, request_kind: str
):
    with workspace.postgres() as postgres:
        url, port = postgres.url, postgres.port
    impostor = Impostor(port, REQUESTS[request_kind])
    try:
        with pytest.raises(psycopg.OperationalError) as refused:
            psycopg.connect(url, connect_timeout=3).close()
    finally:
        impostor.close()
    assert impostor.connections
    assert impostor.received == b"", "a password, or its hash"
    assert 'requirement "scram-sha-256" failed' in str(refused.value)
