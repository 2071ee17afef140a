"""The description of the API in the repository is that of the API."""

from __future__ import annotations

from tests.support.openapi import DOCUMENT, written


def test_document_equals_what_the_routes_say():
    assert written() == DOCUMENT.read_text(), "run `make openapi`"


async def test_server_serves_the_same_document(api, openapi):
    assert (await api.get("/openapi.json")).json() == openapi
