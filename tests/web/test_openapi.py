"""The OpenAPI document in the repository describes the API."""

from __future__ import annotations

from tests.support.openapi import DOCUMENT, written


def test_openapi_document_in_the_repository_is_current():
    assert written() == DOCUMENT.read_text(), "run `make openapi`"


async def test_server_serves_the_same_document(api, openapi):
    assert (await api.get("/openapi.json")).json() == openapi
