"""A contract refuses terms that cannot work, and can be read back from its published terms."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from leasehold.domain.contract import DEFAULT_LEASE_NAME, Contract, RetryTerms
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import JsonDocument
from leasehold.domain.refused_terms import problems_of
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.ledger.terms import LedgerTerms
from leasehold.gateway.python.terms import PythonTerms
from leasehold.store.reader_rows import PublishedContract

HTTP = HttpTerms(url="https://a.example/send")
LEDGER = LedgerTerms(url="https://ledger.example/api", stream_header="Grid-Service-Id")
ASKABLE = HttpTerms(url="https://a.example/send", lookup_url="https://a.example/send/{key}")


def contract(**fields):
    return Contract.model_validate(
        {"target": "sms", "scope": "item", "guarantee": "keyed", "gateway": HTTP} | fields
    )


def refusals(**fields):
    """The problems of terms that must be refused, as shown to people."""
    with pytest.raises(ValidationError) as raised:
        contract(**fields)
    return [str(problem) for problem in problems_of(Contract, raised.value)]


CONTRACTS = [
    contract(),
    contract(scope="cluster", guarantee="lookup", gateway=ASKABLE),
    contract(scope="cluster", lease_name="payments-lease"),
    contract(scope="stream", guarantee="blind", gateway=PythonTerms(function="a.b:c")),
    contract(guarantee="lookup", gateway=LEDGER),
    contract(scope="cluster", guarantee="keyed", gateway=LEDGER),
    contract(scope="stream", guarantee="lookup", gateway=LEDGER),
    contract(guarantee="fenced", retry=RetryTerms(policy="one_shot"), priority=3),
    contract(
        gateway=HttpTerms(
            url="http://127.0.0.1:8000/keyed",
            headers={"X-Team": "sms"},
            secret_headers={"Authorization": "SMS_TOKEN"},
            signing_secret_env="SMS_SIGNING",
            allow_private=True,
            allow_hosts=("gateway.internal", "*.svc.internal"),
            rejected_statuses=("400", "422"),
        ),
        key_window_seconds=86_400,
        deadline_seconds=60.5,
        retry=RetryTerms(policy="deadline", attempts_max=7, first_seconds=0.5),
        lease_seconds=10,
        call_timeout_seconds=8,
        quarantine_seconds=100,
        concurrency=3,
        rate_per_second=0.5,
        pending_max=5000,
    ),
]


@pytest.mark.parametrize("one", CONTRACTS, ids=range(len(CONTRACTS)))
def test_contract_survives_the_round_trip_through_its_published_terms(one):
    terms = json.loads(json.dumps(one.terms()))
    assert Contract.from_terms("sms", 3, terms) == one.model_copy(update={"version": 3})


def test_terms_that_the_database_reads_are_at_the_top_level():
    terms = contract(
        guarantee="lookup", gateway=ASKABLE, scope="cluster", deadline_seconds=9
    ).terms()
    decisive = {
        "scope": "cluster",
        "guarantee": "lookup",
        "lease_name": DEFAULT_LEASE_NAME,
        "retry_policy": "max_attempts",
        "attempts_max": 20,
        "deadline_seconds": 9,
        "lease_seconds": 60,
        "call_timeout_seconds": 25,
        "quarantine_seconds": 120,
        "can_look_up": True,
    }
    assert {name: terms[name] for name in decisive} == decisive
    assert "target" not in terms
    assert "version" not in terms
    assert "key_window_seconds" not in terms, "what is not set is left out"


def test_terms_published_in_plain_sql_get_the_defaults_of_the_database():
    read = Contract.from_terms("sms", 1, {"scope": "item", "guarantee": "keyed"})
    assert read == contract(gateway=None, version=1)
    assert (read.retry.attempts_max, read.lease_seconds, read.quarantine_seconds) == (20, 30, 60)
    one_shot = Contract.from_terms(
        "sms", 1, {"scope": "item", "guarantee": "lookup", "retry_policy": "one_shot"}
    )
    assert one_shot.retry == RetryTerms(policy="one_shot", attempts_max=1)
    assert one_shot.can_look_up
    assert one_shot.gateway is None


def test_call_to_somebody_elses_service_gets_a_longer_lease():
    http = {"kind": "http", "url": "https://sms.example.com"}
    ledger = {"kind": "ledger", "url": "https://ledger.example.com"}
    python = {"kind": "python", "function": "post:send"}
    leases = {
        gateway["kind"]: Contract.model_validate(
            {"target": "sms", "scope": "item", "guarantee": "keyed", "gateway": gateway}
        ).lease_seconds
        for gateway in (http, ledger, python)
    }
    assert leases == {"http": 60, "ledger": 60, "python": 30}, "source document 004, RULE-020-002"


def test_unknown_term_is_refused_instead_of_ignored():
    terms = contract().terms() | {"two_phase": True}
    with pytest.raises(InvalidArgument, match=r"sms, version 4: two_phase: is not a setting"):
        Contract.from_terms("sms", 4, terms)


@pytest.mark.parametrize(
    ("term", "told"),
    [
        ({"retry": 5}, "retry: must be a table"),
        ({"retry": None}, "retry: must be a table"),
        ({"retry": ["often"], "attempts_max": 3}, "retry: must be a table"),
        ({"can_look_up": [True]}, "can_look_up is"),
        ({"batch_max": {}}, "batch_max is"),
    ],
)
def test_terms_of_another_shape_are_refused_like_any_that_this_release_cannot_read(term, told):
    """Any other error would have kept an instance from reading the contracts of all targets."""
    terms = contract().terms()
    del terms["attempts_max"]
    with pytest.raises(InvalidArgument, match=rf"contract of sms, version 4: {told}"):
        Contract.from_terms("sms", 4, terms | term)


def test_terms_that_claim_a_missing_lookup_are_refused():
    terms = contract().terms() | {"can_look_up": True}
    with pytest.raises(InvalidArgument, match="can_look_up is True, but the gateway's is False"):
        Contract.from_terms("sms", 1, terms)


@pytest.mark.parametrize(
    ("scope", "guarantee", "must_begin"),
    [
        ("item", "keyed", False),
        ("item", "fenced", False),
        ("item", "lookup", True),
        ("item", "blind", True),
        ("stream", "keyed", True),
        ("cluster", "keyed", False),
        ("cluster", "lookup", True),
    ],
)
def test_call_must_be_begun_if_a_dead_holder_would_leave_it_in_doubt(scope, guarantee, must_begin):
    gateway = ASKABLE if guarantee == "lookup" else HTTP
    assert contract(scope=scope, guarantee=guarantee, gateway=gateway).must_begin is must_begin


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"lease_seconds": 30, "call_timeout_seconds": 40},
            r"call_timeout_seconds \(40\) must be less than lease_seconds \(30\): a call must end",
        ),
        ({"call_timeout_seconds": 60}, r"call_timeout_seconds \(60\) must be less than"),
        (
            {"connect_timeout_seconds": 25},
            r"connect_timeout_seconds \(25\) must be less than call_timeout_seconds \(25\)",
        ),
        (
            {"quarantine_seconds": 119},
            r"quarantine_seconds \(119\) must be at least 2 \* lease_seconds \(120\)",
        ),
        (
            {"key_window_seconds": 120},
            r"key_window_seconds \(120\) must exceed 2 \* lease_seconds \(120\)",
        ),
        (
            {"guarantee": "fenced", "key_window_seconds": 199},
            "key_window_seconds is only for guarantee",
        ),
        ({"retry": {"policy": "deadline"}}, "deadline_seconds is required with retry.policy"),
        ({"retry": {"policy": "one_shot", "attempts_max": 2}}, r"attempts_max \(2\) must be 1"),
        (
            {"retry": {"first_seconds": 9, "longest_seconds": 3}},
            r"first_seconds \(9\) must not exceed",
        ),
        ({"lease_name": "mine"}, "lease_name is only for scope cluster"),
        ({"scope": "cluster", "lease_name": None}, "lease_name is only for scope cluster"),
        ({"scope": "cluster", "lease_name": "a/b"}, "lease_name: must be 1 to 64 characters"),
        ({"guarantee": "lookup"}, "guarantee lookup needs a gateway with a lookup"),
        (
            {"guarantee": "blind", "gateway": ASKABLE},
            "guarantee blind is only for a gateway without",
        ),
        (
            {"guarantee": "blind", "gateway": LEDGER},
            "guarantee blind is only for a gateway without",
        ),
        ({"guarantee": "fenced", "gateway": LEDGER}, "guarantee fenced is not for kind ledger"),
        ({"target": "A b"}, "target: must be 1 to 64 of"),
        ({"attempts_max": 3}, "attempts_max: is not a setting; allowed here"),
    ],
)
def test_terms_that_cannot_work_together_are_refused_with_the_reason(fields, told):
    [problem] = refusals(**fields)
    assert re.match(told, problem) or re.match(rf"retry: {told}", problem), problem


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "galaxy"},
        {"guarantee": "hopeful"},
        {"lease_seconds": 0.5},
        {"lease_seconds": 3601},
        {"lease_seconds": "30"},
        {"lease_seconds": True},
        {"lease_seconds": float("nan")},
        {"deadline_seconds": 0},
        {"deadline_seconds": float("inf")},
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"rate_per_second": 0},
        {"pending_max": 0},
        {"pending_max": 1_000_001},
        {"pending_max": 1.5},
        {"priority": 4},
        {"priority": -1},
        {"version": 0},
        {"retry": {"attempts_max": 21}},
        {"retry": {"attempts_max": 0}},
        {"retry": {"factor": 0.5}},
        {"retry": {"jitter": 1.1}},
        {"retry": {"policy": "forever"}},
    ],
    ids=str,
)
def test_value_out_of_bounds_is_refused(fields):
    assert refusals(**fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"url": "ftp://a.example"}, "gateway.url: must be an address such as"),
        ({"url": "https://"}, "gateway.url: must be an address"),
        ({"url": "https://a.example:0/"}, "gateway.url: must be an address"),
        ({"url": "https://a.example:99999/"}, "gateway.url: must be an address"),
        ({"url": "https://[::1/"}, "gateway.url: must be an address"),
        ({"url": "https://u:p@a.example"}, "gateway.url: must not contain a user or password"),
        ({"url": "https://a.example/x y"}, "gateway.url: must not contain spaces"),
        ({"url": "https://a.example/#x"}, "gateway.url: must not contain spaces"),
        ({"url": "https://a.example/{key}"}, "gateway: url must not contain {key}"),
        ({"lookup_url": "https://a.example/"}, "gateway: lookup_url must contain {key}"),
        ({"lookup_url": "https://{key}.example/"}, "gateway.lookup_url: may contain {key} only"),
        (
            {"lookup_url": "https://a.example/{key}/{id}"},
            "gateway.lookup_url: may contain {key} only",
        ),
        ({"headers": {"Authorization": "hunter2"}}, "gateway.headers: Authorization is a secret"),
        ({"headers": {"Api-Key": "hunter2"}}, "gateway.headers: Api-Key is a secret"),
        ({"headers": {"X-Auth-Token": "hunter2"}}, "gateway.headers: X-Auth-Token is a secret"),
        ({"headers": {"X_Client_Secret": "hunter2"}}, "gateway.headers: X_Client_Secret is a"),
        ({"headers": {"idempotency-key": "1"}}, "gateway.headers: idempotency-key is set by"),
        ({"secret_headers": {"Fencing-Token": "X"}}, "gateway.secret_headers: Fencing-Token is"),
        ({"headers": {"a b": "1"}}, "gateway.headers: a header name must"),
        ({"headers": {"X-A": "1\r\nX-B: 2"}}, "gateway.headers: the value of X-A must not"),
        (
            {"secret_headers": {"Authorization": "Bearer hunter2"}},
            "gateway.secret_headers.Authorization: must be the name of an environment variable",
        ),
        ({"signing_secret_env": "whsec_hunter2=="}, "gateway.signing_secret_env: must be the name"),
        (
            {"headers": {"X-A": "1"}, "secret_headers": {"x-a": "A"}},
            "gateway: the header x-a is given twice",
        ),
        (
            {"url": "http://a.example", "secret_headers": {"X-A": "A"}},
            "gateway: secret_headers need https",
        ),
        ({"allow_hosts": ["https://a"]}, "gateway.allow_hosts: each must be a host name"),
        ({"allow_hosts": ["a.internal:8080"]}, "gateway.allow_hosts: each must be a host name"),
        ({"allow_hosts": ["10.0.0.1:80"]}, "gateway.allow_hosts: each must be a host name"),
        ({"accepted_statuses": ["6xx"]}, "gateway.accepted_statuses.0: must be a status such as"),
        ({"accepted_statuses": [True]}, "gateway.accepted_statuses.0: must be"),
        ({"accepted_statuses": "2xx"}, "gateway.accepted_statuses: must be a list"),
        ({"accepted_statuses": ["4xx"]}, "gateway: 4xx is in accepted_statuses and in rejected_"),
        ({"submitted_statuses": [202]}, "gateway: submitted_statuses need a lookup_url"),
        ({"response_bytes_max": 0}, "gateway.response_bytes_max: must be greater"),
        ({"redirects": True}, "gateway.redirects: is not a setting; allowed here"),
        ({"stream_header": "fencing-token"}, "gateway.stream_header: fencing-token is set by"),
        ({"stream_header": "a b"}, "gateway.stream_header: a header name must"),
        ({"stream_header": "hunter2x" * 4}, "gateway.stream_header: must be the name of a header"),
        (
            {"stream_header": "X-A", "headers": {"x-a": "1"}},
            "gateway: the header x-a is given twice",
        ),
    ],
)
def test_http_terms_that_cannot_work_are_refused_without_showing_a_secret(fields, told):
    [problem] = refusals(gateway={"kind": "http", "url": "https://a.example"} | fields)
    assert problem.startswith(told), problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"url": "https://a.example/?x=1"}, "gateway: url must be the address to which /batches"),
        ({"url": "https://a.example/{key}"}, "gateway: url must be the address to which /batches"),
        ({"url": "https://u:hunter2@a.example"}, "gateway.url: must not contain a user"),
        ({"lookup_url": "https://a.example/{key}"}, "gateway.lookup_url: is not a setting"),
        ({"lookups_max": 51}, "gateway.lookups_max: must be less"),
        ({"submissions_max": 0}, "gateway.submissions_max: must be greater"),
        ({"ask_after_seconds": 0}, "gateway.ask_after_seconds: must be greater"),
        ({"headers": {"leasehold-batch-id": "1"}}, "gateway.headers: leasehold-batch-id is set by"),
        (
            {"url": "http://a.example", "secret_headers": {"X-A": "A"}},
            "gateway: secret_headers need https",
        ),
    ],
)
def test_ledger_terms_that_cannot_work_are_refused_without_showing_a_secret(fields, told):
    ledger = {"kind": "ledger", "url": "https://a.example"}
    [problem] = refusals(guarantee="lookup", gateway=ledger | fields)
    assert problem.startswith(told), problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("path", ["send", "a.b:", ":c", "a b:c", "a.b:c()", "a..b:c"])
def test_python_terms_take_an_import_path_and_nothing_else(path):
    [problem] = refusals(gateway={"kind": "python", "function": path})
    assert problem.startswith("gateway.function: must be an import path such as")


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (200, "accepted"),
        (202, "submitted"),
        (301, "unknown"),
        (400, "rejected"),
        (401, "deferred"),
        (403, "deferred"),
        (404, "rejected"),
        (405, "rejected"),
        (407, "deferred"),
        (408, "retryable"),
        (409, "unknown"),
        (429, "saturated"),
        (500, "unknown"),
        (503, "saturated"),
        (504, "unknown"),
        (100, "unknown"),
        (999, "unknown"),
    ],
)
def test_status_is_never_read_as_more_certain_than_it_is(status, meaning):
    assert ASKABLE.classify(status) == meaning


@pytest.mark.parametrize(
    ("terms", "meanings"),
    [
        ({"rejected_statuses": ["4xx", "401", "403"]}, {401: "rejected", 403: "rejected"}),
        ({"retryable_statuses": ["401"]}, {401: "retryable", 403: "deferred", 407: "deferred"}),
        ({"rejected_statuses": ["4xx"]}, {401: "deferred", 403: "deferred", 415: "rejected"}),
        ({"deferred_statuses": ["404"]}, {404: "deferred", 401: "rejected"}),
        ({"deferred_statuses": []}, {401: "rejected", 403: "rejected"}),
    ],
)
def test_status_that_a_contract_names_keeps_its_meaning(terms, meanings):
    contract = Contract.model_validate(
        {"target": "sms", "scope": "item", "guarantee": "keyed"}
        | {"gateway": {"kind": "http", "url": "https://a.example"} | terms}
    )
    assert isinstance(contract.gateway, HttpTerms)
    assert {status: contract.gateway.classify(status) for status in meanings} == meanings


def test_status_that_is_deferred_and_rejected_is_refused():
    gateway = {"kind": "http", "url": "https://a.example"}
    [problem] = refusals(
        gateway=gateway | {"deferred_statuses": ["404"], "rejected_statuses": ["404"]}
    )
    assert "404 is in rejected_statuses and in deferred_statuses" in problem


def test_ledger_that_takes_a_batch_is_never_read_as_having_committed_it():
    assert {LEDGER.classify(status) for status in range(200, 300)} == {"submitted"}
    others = [status for status in range(100, 600) if status // 100 != 2]
    assert all(LEDGER.classify(one) == HTTP.classify(one) for one in others)


def test_202_is_accepted_if_there_is_no_lookup():
    assert HTTP.classify(202) == "accepted"


def test_exact_status_takes_precedence_over_its_class():
    terms = HttpTerms(url="https://a.example", rejected_statuses=("500",), accepted_statuses=())
    wide = HttpTerms.model_validate(
        {
            "url": "https://a.example",
            "accepted_statuses": [409],
            "unknown_statuses": ["2xx"],
            "retryable_statuses": ["5xx"],
        }
    )
    assert (terms.classify(500), terms.classify(200)) == ("rejected", "unknown")
    assert [wide.classify(status) for status in (409, 200, 500, 503)] == [
        "accepted",
        "unknown",
        "retryable",
        "saturated",
    ]


def test_contract_is_immutable():
    with pytest.raises(ValidationError):
        contract().concurrency = 11


def test_equal_terms_are_parsed_once_and_different_terms_are_kept_apart():
    def read(terms):
        published = PublishedContract(
            target="sms",
            version=1,
            terms=JsonDocument(terms),
            published_at=datetime(2030, 1, 1, tzinfo=UTC),
            published_by="ann",
        )
        return published.contract()

    keyed = b'{"scope": "item", "guarantee": "keyed"}'
    assert read(keyed) is read(bytes(bytearray(keyed)))
    assert read(keyed.replace(b"keyed", b"blind")).guarantee == "blind"
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            read(b'{"scope": "item"}')


def test_stream_blocks_on_failure_unless_its_contract_says_otherwise():
    stream = contract(scope="stream")
    assert (stream.on_failure, stream.batch_max) == ("block", 1)
    assert contract().on_failure is None
    gateway = HttpTerms(url="https://a.example/send", submissions_max=10)
    waits = contract(scope="stream", on_failure="block_for", block_seconds=60, gateway=gateway)
    terms = json.loads(json.dumps(waits.terms()))
    assert terms["batch_max"] == 10
    assert Contract.from_terms("sms", 1, terms) == waits.model_copy(update={"version": 1})
    with pytest.raises(InvalidArgument, match="batch_max is 11, but the gateway's is 10"):
        Contract.from_terms("sms", 1, terms | {"batch_max": 11})


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"on_failure": "continue"}, "on_failure is only for scope stream, not item"),
        (
            {"gateway": HttpTerms(url="https://a.example/send", submissions_max=2)},
            (
                "submissions_max (2) is only for scope stream, not item: several intents in one "
                "call must be consecutive ones of a stream"
            ),
        ),
        (
            {"scope": "stream", "on_failure": "block_for"},
            "block_seconds is required with on_failure block_for, and only then",
        ),
        (
            {"scope": "stream", "block_seconds": 5},
            "block_seconds is required with on_failure block_for, and only then",
        ),
        (
            {"confirm_within_seconds": 60},
            (
                "confirm_within_seconds needs a gateway with a lookup: without one nobody asks "
                "whether a submission is confirmed"
            ),
        ),
        ({"pipeline_max": 5}, "pipeline_max is only for scope stream, not item"),
        (
            {"scope": "stream", "pipeline_max": 5},
            (
                "pipeline_max (5) needs a gateway with a lookup: the next intent starts while "
                "others await their confirmation, and somebody must ask"
            ),
        ),
        (
            {
                "scope": "stream",
                "guarantee": "lookup",
                "gateway": LedgerTerms(url="https://a.example", submissions_max=5),
            },
            (
                "submissions_max (5) must not exceed pipeline_max (1) where the gateway confirms "
                "later: all intents of one call await their confirmation at once"
            ),
        ),
        (
            {
                "scope": "stream",
                "pipeline_max": 4,
                "gateway": HttpTerms(
                    url="https://a.example/send",
                    lookup_url="https://a.example/{key}",
                    submissions_max=5,
                ),
            },
            (
                "submissions_max (5) must not exceed pipeline_max (4) where the gateway confirms "
                "later: all intents of one call await their confirmation at once; if it never "
                "does, set submitted_statuses = []"
            ),
        ),
    ],
)
def test_terms_of_streams_that_contradict_each_other_are_refused(terms, problem):
    assert refusals(**terms) == [problem]


@pytest.mark.parametrize(("pipeline_max", "statuses"), [(5, ("202",)), (9, ("202",)), (None, ())])
def test_batch_that_fits_its_pipeline_or_is_never_confirmed_later_is_accepted(
    pipeline_max, statuses
):
    gateway = HttpTerms(
        url="https://a.example/send",
        lookup_url="https://a.example/{key}",
        submissions_max=5,
        submitted_statuses=statuses,
    )
    assert contract(scope="stream", pipeline_max=pipeline_max, gateway=gateway).batch_max == 5
