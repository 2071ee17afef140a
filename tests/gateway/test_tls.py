"""Nothing is sent to a server whose certificate does not verify."""

from __future__ import annotations

import ssl

import pytest

from leasehold.domain.outcome import Accepted, Deferred
from tests.support.certificates import self_signed
from tests.support.http_gateways import RawServer, http_gateway, make_submission

pytestmark = pytest.mark.program("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Create a self-signed certificate for localhost only."""
    return self_signed(tmp_path_factory.mktemp("tls"), "DNS:localhost")


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


async def answer(_reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def submit(server, host):
    async with http_gateway(server.url.replace("127.0.0.1", host)) as gateway:
        return await gateway.submit(make_submission())


async def test_untrusted_certificate_sends_nothing(tls):
    async with RawServer(answer).running(tls) as server:
        outcome = await submit(server, "localhost")
        assert isinstance(outcome, Deferred)
        assert outcome.reason == "connect"
        assert "certificate" in outcome.detail.lower()
        assert server.requests == []


async def test_certificate_for_another_name_sends_nothing(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    async with RawServer(answer).running(tls) as server:
        outcome = await submit(server, "127.0.0.1")
        assert isinstance(outcome, Deferred)
        assert server.requests == []


async def test_private_authority_is_trusted_through_ssl_cert_file(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    async with RawServer(answer).running(tls) as server:
        assert await submit(server, "localhost") == Accepted(code="200")
        assert b'{"amount": 1}' in server.requests[0]
