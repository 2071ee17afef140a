"""schemathesis: every response matches the OpenAPI document, and valid requests are accepted.

Each test runs a fixed set of examples, and random ones. If a random one fails, pytest prints the
`--hypothesis-seed` that repeats it.
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

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
    unsupported_method,
]
# What is wrong with a request that the schema permits, because a schema cannot say it.
BEYOND_THE_SCHEMA = {
    "must be after now and after the intent is due",
    "must be after 1970 and within ten years",
    "must not be before 1970",
    "must be after 1970 and before 9999-12-31",
    "must be before 9999-12-31",
    "differs from the header Idempotency-Key",
    "must be the id of an event of this database; start without one",
    "must be the `next` of a page",
    "must be a time with its time zone, such as 2030-01-31T12:00:00Z",  # 30 February
    "The text has a NUL or a lone surrogate, which cannot be stored.",  # deep in a payload
}
COMMON = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
}

schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))
# Without the systematic examples, which are the same each time.
random_schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))
random_schema.config.phases.coverage.enabled = False


@pytest.fixture(scope="module")
def served(server, tmp_path_factory):
    """A server process: its URL and a token with every scope."""
    database = Database(server, server.create_database())
    outbox = Outbox(database)
    outbox.publish("sms")
    outbox.enqueue(3, idempotency_key=None)
    outbox.publish("pay", scope="stream")
    outbox.enqueue(2, "pay", stream="s")
    outbox.call("operator", "pause_stream", "pay", "s", "test", "wait")
    serving = Serving(database, tmp_path_factory.mktemp("contract") / "log", "--no-execute")
    yield asyncio.run(serving.url()), serving.token
    serving.close()
    database.close()


def messages_of(response):
    document = response.json()
    return {one["message"] for one in document.get("problems", ())} or {document["detail"]}


@schemathesis.check
def valid_request_is_accepted(ctx, response, case):
    """Like positive_data_acceptance, except for what no schema can say."""
    if response.status_code not in {400, 422} or not messages_of(response) <= BEYOND_THE_SCHEMA:
        positive_data_acceptance(ctx, response, case)


@schemathesis.check
def invalid_request_is_refused(ctx, response, case):
    """Like negative_data_rejection, except that a batch has a verdict for each intent."""
    if case.operation.path.endswith(":batch") and response.status_code == 200:
        assert len(response.json()["results"]) == len(case.body["intents"])
    else:
        negative_data_rejection(ctx, response, case)


def check(case, served):
    url, token = served
    case.headers["Authorization"] = f"Bearer {token}"
    # A stream of events does not end: its beginning is enough.
    sent = case.as_transport_kwargs(base_url=url)
    with requests.request(**sent, stream=True, timeout=30) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response._content = next(response.iter_content(None))
        checks = [*CHECKS, valid_request_is_accepted, invalid_request_is_refused]
        case.validate_response(response, checks=checks)


@settings(max_examples=8, derandomize=True, **COMMON)
def check_systematically(case, served):
    check(case, served)


@pytest.mark.parametrize(
    "operation", [result.ok() for result in schema.get_all_operations()], ids=lambda one: one.label
)
def test_every_response_matches_the_openapi_document(operation, served):
    # schema.parametrize() would compute the systematic examples in every process that collects the
    # tests: half a minute.
    test = build_operation_test(
        config=schema.config,
        operation=operation,
        test_func=check_systematically,
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    test(served=served)


@random_schema.parametrize()
@settings(max_examples=8, database=None, **COMMON)
def test_every_response_to_a_random_request_matches_the_document(case, served):
    check(case, served)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@random_schema.parametrize()
@settings(
    max_examples=int(os.environ.get("TEST_HYPOTHESIS_EXAMPLES", "100")), database=None, **COMMON
)
def test_many_random_requests_match_the_document(case, served):
    check(case, served)
