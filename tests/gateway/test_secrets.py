"""What a gateway echoes of our secrets is hidden before it reaches the ledger or the logs."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
from contextlib import asynccontextmanager
from urllib.parse import quote, quote_plus
from uuid import UUID

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.intent import JsonDocument
from leasehold.domain.outcome import Submitted
from leasehold.gateway.errors import GatewayMisconfigured
from leasehold.gateway.ledger.terms import LedgerTerms
from leasehold.gateway.python.terms import PythonTerms
from leasehold.gateway.registry import open_gateway
from leasehold.gateway.sanitize import CODE_MAX, DETAIL_MAX, REFERENCE_MAX
from tests.support import leaky_gateways
from tests.support.http_gateways import (
    RawServer,
    batch_id,
    http_gateway,
    make_batch,
    make_submission,
)
from tests.support.log_stream import log_stream
from tests.support.passing_time import pass_time

TOKEN = "t0k/en+with\"odd\"&<chars>%41='x'~"
PASSWORD = "p@ss:w0rd/+&1"
BASIC = base64.b64encode(f"shop:{PASSWORD}".encode()).decode()
SIGNING = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DATABASE_PASSWORD = "Xk3-zZ/19+yy"
ENVIRONMENT = {
    "TOKEN": f"Bearer {TOKEN}",
    "BASIC": f"Basic {BASIC}",
    "SIGNING": f"whsec_{SIGNING}",
}
SECRETS = [TOKEN, PASSWORD, BASIC, SIGNING, DATABASE_PASSWORD]

# What a gateway may do with the value of a header before it echoes it.
SPELLINGS = {
    "as it is": str,
    "the credentials alone": lambda value: value.partition(" ")[2],
    "capitals": str.upper,
    "JSON": lambda value: json.dumps({"got": value}),
    "JSON in JSON": lambda value: json.dumps(json.dumps({"got": value})),
    "JSON of PHP": lambda value: json.dumps(value).replace("/", "\\/"),
    "JSON of .NET": lambda value: re.sub(r"[^\w ]", lambda m: f"\\u{ord(m[0]):04X}", value),
    "JSON of Go": lambda value: re.sub(r"[<>&]", lambda m: f"\\u{ord(m[0]):04x}", value),
    "repr": repr,
    "HTML": html.escape,
    "HTML in decimal": lambda value: "".join(f"&#{ord(one)};" for one in value),
    "HTML in hexadecimal": lambda value: "".join(f"&#x{ord(one):X};" for one in value),
    "HTML in JSON": lambda value: json.dumps(html.escape(value)),
    "URL": lambda value: quote(value, safe=""),
    "URL twice": lambda value: quote(quote(value, safe=""), safe=""),
    "form": quote_plus,
    "hexadecimal": lambda value: value.encode().hex(),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "base64 in JSON": lambda value: json.dumps(base64.b64encode(value.encode()).decode()),
    "base64 of more, 1": lambda value: base64.b64encode(f"A{value}\n".encode()).decode(),
    "base64 of more, 2": lambda value: base64.b64encode(f"AB{value}\n\n".encode()).decode(),
}


def response(status, body="", **headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    encoded = body.encode()
    head = f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(encoded)}\r\n\r\n"
    return head.encode() + encoded


def said(**members):
    return json.dumps(members)


# Where the echo is in the response: to a submission, and to a lookup.
PLACES = {
    "rejection": lambda echo: response(422, echo),
    "reason": lambda echo: response(422, said(reason=echo)),
    "error": lambda echo: response(500, echo),
    "conflict": lambda echo: response(409, said(reference=echo, text=echo)),
    "saturation": lambda echo: response(503, echo),
    "expired credentials": lambda echo: response(401, f"<p>{echo}</p>"),
    "reference": lambda echo: response(200, said(reference=echo)),
    "reference of a later result": lambda echo: response(202, said(reference=echo)),
    "location": lambda echo: response(201, Location=f"https://api.example.com/{echo}"),
    "redirect": lambda echo: response(302, echo, Location=echo),
    "not found": lambda echo: response(404, echo),
    "lookup accepted": lambda echo: response(200, said(status="accepted", reference=echo)),
    "lookup rejected": lambda echo: response(200, said(status="rejected", reason=echo)),
    "lookup pending": lambda echo: response(200, said(status="pending", reference=echo)),
    "malformed header": lambda echo: f"HTTP/1.1 200 OK\r\nBad header {echo}\r\n\r\n".encode(),
    "malformed status": lambda echo: f"HTTP/1.1 {echo}\r\n\r\n".encode(),
}


# The same for a ledger.
OF_A_LEDGER = {"id": batch_id("a"), "status": "INVALID"}
LEDGER_PLACES = PLACES | {
    "error of a ledger": lambda echo: response(400, said(error={"code": 30, "message": echo})),
    "lost validator": lambda echo: response(503, said(error={"code": 17, "message": echo})),
    "link": lambda echo: response(202, said(link=echo)),
    "invalid batch": lambda echo: response(
        200, said(data=[OF_A_LEDGER | {"invalid_transactions": [{"message": echo}]}])
    ),
    "invalid batch, no object": lambda echo: response(
        200, said(data=[OF_A_LEDGER | {"invalid_transactions": [echo]}])
    ),
    "status": lambda echo: response(200, said(data=[OF_A_LEDGER | {"status": echo}])),
    "id": lambda echo: response(200, said(data=[OF_A_LEDGER | {"id": echo}])),
    "no statuses": lambda echo: response(200, said(data=echo)),
}


@pytest.fixture
def logged():
    with log_stream() as stream:
        yield stream


class Echo:
    """Answers with what `make` makes of the values of our secret headers."""

    def __init__(self, make):
        self.make = make
        self.server = RawServer(self._act)

    async def _act(self, _reader, writer):
        head = self.server.requests[-1].partition(b"\r\n\r\n")[0].decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
        writer.write(self.make(headers["Authorization"], headers["X-Login"]))
        await writer.drain()

    @asynccontextmanager
    async def gateway(self, **changes):
        async with self.server.running():
            terms = {
                "lookup_url": f"{self.server.url}{{key}}",
                "secret_headers": {"Authorization": "TOKEN", "X-Login": "BASIC"},
                "signing_secret_env": "SIGNING",
                "environment": ENVIRONMENT,
                "secrets": [DATABASE_PASSWORD],
            }
            async with http_gateway(self.server.url, **(terms | changes)) as gateway:
                yield gateway

    async def outcomes(self, **changes):
        async with self.gateway(**changes) as gateway:
            return await call(gateway)


async def call(gateway):
    submission = make_submission()
    together = await gateway.submit_many([submission, make_submission()])
    return [await gateway.submit(submission), await gateway.lookup(submission), *together]


def assert_hidden(*texts, secrets=SECRETS):
    """Require that not even a part of a secret is there, in any spelling that can be undone."""
    for text in texts:
        for readable in readings(text):
            for secret in secrets:
                for start in range(len(secret) - 7):
                    assert secret[start : start + 8].lower() not in readable.lower(), text


def readings(text):
    yield text
    plain = text
    for _ in range(4):
        plain = html.unescape(
            re.sub(r"\\u00(..)", lambda m: chr(int(m[1], 16)), re.sub(r"%(..)", _unquote, plain))
        )
        yield plain
        yield plain.replace("\\", "")
    for found in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
        for start in range(4):
            part = found[start:].replace("-", "+").replace("_", "/")
            yield base64.b64decode(part[: len(part) // 4 * 4]).decode("latin-1")
    for found in re.findall(r"(?:[0-9a-f]{2}){8,}", text, re.IGNORECASE):
        yield bytes.fromhex(found).decode("latin-1")


def _unquote(found):
    try:
        return chr(int(found[1], 16))
    except ValueError:
        return found[0]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_echoed_header_is_hidden_from_outcome_and_logs(logged, spelling):
    spell = SPELLINGS[spelling]
    echo = Echo(None)
    async with echo.gateway() as gateway:
        for put in PLACES.values():
            echo.make = lambda token, _, put=put: put(spell(token))
            assert_hidden(*map(repr, await call(gateway)))
            echo.make = lambda _, login, put=put: put(spell(login))
            assert_hidden(*map(repr, await call(gateway)))
    assert_hidden(logged.getvalue())
    assert logged.getvalue().count("outcome_unknown") >= 4, "the responses that are malformed"


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_header_that_a_ledger_echoes_is_hidden_from_outcome_and_logs(logged, spelling):
    spell = SPELLINGS[spelling]
    echo = Echo(None)
    terms = {"kind": LedgerTerms, "guarantee": "lookup", "secrets": [DATABASE_PASSWORD]}
    async with (
        echo.server.running(),
        http_gateway(
            echo.server.url,
            secret_headers={"Authorization": "TOKEN", "X-Login": "BASIC"},
            environment=ENVIRONMENT,
            **terms,
        ) as gateway,
    ):
        for put in LEDGER_PLACES.values():
            for which in (0, 1):
                echo.make = lambda *values, put=put, which=which: put(spell(values[which]))
                answers = await call_ledger(gateway)
                assert_hidden(*map(repr, answers))
    assert_hidden(logged.getvalue())


async def call_ledger(gateway):
    both = [make_batch("a"), make_batch("b")]
    return [
        await gateway.submit(both[0]),
        *await gateway.submit_many(both),
        *await gateway.lookup_many(both),
    ]


@pytest.mark.parametrize("secret", SECRETS)
async def test_part_of_a_header_and_other_secrets_of_ours_are_hidden(logged, secret):
    outcomes = await Echo(lambda *_: response(422, f"wrong: {secret}.")).outcomes()
    assert_hidden(*map(repr, outcomes), logged.getvalue())
    assert outcomes[0].detail == "wrong: ***."


@pytest.mark.parametrize("spelling", ["as it is", "JSON of .NET", "base64", "URL twice"])
async def test_secret_is_hidden_wherever_the_text_is_cut_off(spelling):
    spell = SPELLINGS[spelling]
    echoed = len(spell(ENVIRONMENT["TOKEN"]))
    echo = Echo(None)
    async with echo.gateway() as gateway:
        for before in range(max(0, DETAIL_MAX - echoed - 2), DETAIL_MAX + 2, 3):
            echo.make = lambda token, _, n=before: response(422, "x" * n + spell(token))
            assert_hidden(*map(repr, await call(gateway)))


async def test_secret_is_hidden_in_a_response_that_contains_little_else():
    for text, characters in (("{} ", 1500), ("\u20ac{}", 900), ("\x00\x00{}", 900), ("{}", 899)):
        outcomes = await Echo(
            lambda token, _, text=text, n=characters: response(422, text.format(token) * n)
        ).outcomes()
        assert_hidden(*map(repr, outcomes))
        assert len(outcomes[0].detail) <= DETAIL_MAX


async def test_reference_that_contains_a_secret_is_dropped():
    submitted, pending, *_ = await Echo(
        lambda token, _: response(200, said(status="pending", reference=f"x-{token}"))
    ).outcomes(accepted_statuses=(), submitted_statuses=(200,))
    assert isinstance(submitted, Submitted)
    assert submitted == pending
    assert UUID(submitted.reference), "the submission key, which the gateway knows too"


async def test_response_without_a_secret_is_kept_as_it_is():
    detail = (
        r'{"error": "a\/b \u00e4 %41 &lt;x&gt; https://api.example.com:8443/a@b", "c": "Basic"}'
    )
    outcomes = await Echo(lambda *_: response(422, detail)).outcomes()
    assert outcomes[0].detail == detail
    outcome, *_ = await Echo(
        lambda *_: response(201, Location="https://api.example.com:8443/messages/a@b")
    ).outcomes()
    assert outcome.reference == "https://api.example.com:8443/messages/a@b"


PYTHON_TOKEN = "Bearer k7-Zq9/of+the-shop"
PYTHON_ENVIRONMENT = {
    "PROVIDER_TOKEN": PYTHON_TOKEN,
    "SHOP_DATABASE_URL": f"postgresql://shop:{quote(PASSWORD, safe='')}@db.example/shop",
}
PYTHON_SECRETS = ["k7-Zq9/of+the-shop", PASSWORD, quote(PASSWORD, safe=""), DATABASE_PASSWORD]
CONTENT = "the text of a letter"
FUNCTIONS = [
    "fail", "fail_chained", "fail_in_group", "quote_content", "not_sent", "not_sent_at_length",
    "unprintable", "endless", "time_out", "answer_nonsense",
    "accepted", "rejected", "retryable", "unknown", "submitted", "not_found",
]  # fmt: skip


def python_gateway(function):
    path = f"tests.support.leaky_gateways:{function}"
    contract = Contract(
        target="sms",
        scope="item",
        guarantee="lookup",
        gateway=PythonTerms(function=path, lookup=path),
    )
    return open_gateway(
        contract, environment=PYTHON_ENVIRONMENT, secrets=[DATABASE_PASSWORD, "short"]
    )


@pytest.fixture
def python_environment(monkeypatch):
    """What the functions read. One that sleeps lets the time of its call run out."""

    async def sleep(seconds):
        pass_time(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(leaky_gateways, "sleep", sleep)
    for name, value in PYTHON_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("python_environment")
@pytest.mark.parametrize("function", FUNCTIONS)
async def test_secret_of_a_python_function_is_hidden_from_outcome_and_logs(logged, function):
    gateway = python_gateway(function)
    contents = [
        make_submission(payload=JsonDocument(json.dumps({"text": CONTENT}).encode())),
        make_submission(payload=None, body=CONTENT.encode(), content_type="text/plain"),
    ]
    for submission in contents:
        for outcome in (await gateway.submit(submission), await gateway.lookup(submission)):
            assert_hidden(repr(outcome), secrets=PYTHON_SECRETS)
            lengths = {"reason": CODE_MAX, "code": CODE_MAX}
            lengths |= {"reference": REFERENCE_MAX, "detail": DETAIL_MAX}
            for name, length_max in lengths.items():
                assert len(getattr(outcome, name, None) or "") <= length_max
    assert_hidden(logged.getvalue(), secrets=[*PYTHON_SECRETS, CONTENT])
    assert len(logged.getvalue()) < 100_000


@pytest.mark.usefixtures("python_environment")
async def test_error_of_a_python_function_is_stored_with_its_type_and_a_redacted_message():
    outcome = await python_gateway("fail").submit(make_submission())
    assert outcome.detail == (
        "RuntimeError: 401 for Authorization: *** of postgresql://shop:***@db.example/shop"
    )
    outcome = await python_gateway("unprintable").submit(make_submission())
    assert outcome.detail == "Unprintable"


@pytest.mark.usefixtures("python_environment")
async def test_log_shows_where_a_python_function_failed_but_not_its_variables(logged):
    await python_gateway("fail_chained").submit(make_submission())
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    [line] = [line for line in lines if line["event"] == "outcome_unknown"]
    for part in ("leaky_gateways.py", "in fail_chained", "in fail\n", "RuntimeError: 401 for"):
        assert part in line["exception"]
    assert line["error"] == "ConnectionError: the provider is gone"


def test_module_that_fails_to_import_does_not_show_a_secret(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_gateways.py").write_text(f"raise RuntimeError({PYTHON_TOKEN!r})")
    contract = Contract(
        target="sms",
        scope="item",
        guarantee="keyed",
        gateway=PythonTerms(function="broken_gateways:send"),
    )
    with pytest.raises(GatewayMisconfigured) as refused:
        open_gateway(contract, environment=PYTHON_ENVIRONMENT)
    assert "RuntimeError: " in str(refused.value)
    assert_hidden(str(refused.value), secrets=PYTHON_SECRETS)
