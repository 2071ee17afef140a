"""schemathesis: every response matches the OpenAPI document."""

from __future__ import annotations

import asyncio
import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.database import Database
from tests.support.openapi import DOCUMENT
from tests.support.outbox import Outbox
from tests.support.serve_process import Serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
# An event stream does not end; it has its own tests.
schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text())).exclude(path="/v1/events")


@pytest.fixture(scope="module")
def served(server, tmp_path_factory):
    """A server process: its URL and a token with every scope."""
    database = Database(server, server.create_database())
    outbox = Outbox(database)
    outbox.publish("sms")
    outbox.enqueue(3, idempotency_key=None)
    serving = Serving(database, tmp_path_factory.mktemp("contract") / "log", "--no-execute")
    yield asyncio.run(serving.url()), serving.token
    serving.close()
    database.close()


@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_response_matches_the_openapi_document(case, served):
    url, token = served
    case.headers["Authorization"] = f"Bearer {token}"
    case.call_and_validate(base_url=url, checks=CHECKS)
