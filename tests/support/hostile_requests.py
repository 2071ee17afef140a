"""Requests that must be refused and must not change anything: bodies, headers, framings and paths.

Each is the bytes of one connection. `{token}` stands for a token of every scope, so that no request
is refused for a missing scope.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = b"Host: leasehold\r\n"
TOKEN = b"Authorization: Bearer {token}\r\n"
JSON = b"Content-Type: application/json\r\n"
GOOD = b'{"target":"sms","payload":1}'
DEEP = 100_000


class Hostile(NamedTuple):
    """The bytes of one connection, named for the test id.

    What is not HTTP may be refused by the server itself, with a bare 400 or 431. Only the requests
    of CLOSED and UNFINISHED get no response.
    """

    name: str
    data: bytes
    is_http: bool = True
    ends: Literal["refused", "closed", "unfinished"] = "refused"


def head(first: bytes, *headers: bytes) -> bytes:
    return first + b" HTTP/1.1\r\n" + HOST + TOKEN + b"".join(headers) + b"\r\n"


def posting(body: bytes, *headers: bytes, kind: bytes = JSON) -> bytes:
    """A complete, well-formed request with this body."""
    length = b"Content-Length: %d\r\n" % len(body)
    return head(b"POST /v1/intents", kind, length, *headers) + body


def chunked(body: bytes, size: int = 65536) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


def trailed(trailers: bytes) -> bytes:
    """The end of the head, a valid chunked body, and these trailers."""
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunked(GOOD)[:-2] + trailers


# JSON values that are malformed, or that the store cannot keep.
VALUES: dict[str, bytes] = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "minus Infinity": b"-Infinity",
    "1e400": b"1e400",
    "minus 1e400": b"-1e400",
    "1e-400": b"1e-400",
    "1E+309": b"1E+309",
    "exponent of 20 digits": b"1e" + b"9" * 20,
    "5,000 digits": b"9" * 5000,
    "5,000 negative digits": b"-" + b"9" * 5000,
    "5,000 decimals": b"0." + b"3" * 5000,
    "a million digits": b"7" * 1_000_000,
    "leading zero": b"012",
    "plus": b"+1",
    "no integer part": b".5",
    "no decimals": b"1.",
    "hexadecimal": b"0x1f",
    "no exponent": b"1e",
    "two minuses": b"--1",
    "NUL escaped": b'"a\\u0000b"',
    "NUL in a name": b'{"a\\u0000":1}',
    "NUL behind an escaped backslash": b'"\\\\\\u0000"',
    "high surrogate": b'"\\ud800"',
    "low surrogate": b'"\\udc00"',
    "high surrogate, then a letter": b'"\\ud83dA"',
    "high surrogate, then an escaped letter": b'"\\ud83d\\u0041"',
    "surrogates the wrong way round": b'"\\ude00\\ud83d"',
    "two high surrogates": b'"\\ud83d\\ud83d\\ude00"',
    "high surrogate in a name": b'{"\\uD800":1}',
    "escape of three digits": b'"\\u12"',
    "escape of no digits": b'"\\uzzzz"',
    "unknown escape": b'"\\x41"',
    "escaped line end": b'"\\\n"',
    "no end of text": b'"abc',
    "single quotes": b"'abc'",
    "no quotes": b"abc",
    "undefined": b"undefined",
    "half a word": b"tru",
    "upper case": b"True",
    "None": b"None",
    "two values": b"1 2",
    "trailing comma in a list": b"[1,]",
    "leading comma": b"[,1]",
    "trailing comma in an object": b'{"a":1,}',
    "missing colon": b'{"a" 1}',
    "missing value": b'{"a":}',
    "name without quotes": b"{a:1}",
    "number as a name": b"{1:1}",
    "list without its end": b"[1",
    "object without its end": b'{"a":1',
    "wrong bracket": b"[1}",
    "comment": b"/* x */ 1",
    "line comment": b"1 // x\n",
    "two members of one name": b'{"a":1,"a":2}',
    "two members of one name, equal": b'{"a":1,"a":1}',
    "two members of one name, one escaped": b'{"a":1,"\\u0061":2}',
    "two members of one name, far below": b'[{"x":[{"b":{"a":1,"c":0,"a":2}}]}]',
    "two empty names": b'{"":1,"":2}',
    "101 lists": b"[" * 101 + b"]" * 101,
    "101 objects": b'{"a":' * 101 + b"1" + b"}" * 101,
    "100,000 lists": b"[" * DEEP + b"]" * DEEP,
    "100,000 lists without their ends": b"[" * DEEP,
    "100,000 objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "100,000 ends": b"]" * DEEP,
    "byte of no UTF-8": b'"\xff"',
    "latin-1": b'"caf\xe9"',
    "overlong NUL": b'"\xc0\x80"',
    "overlong slash": b'"\xe0\x80\xaf"',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "pair of surrogates in UTF-8": b'"\xed\xa0\xbd\xed\xb8\x80"',
    "beyond Unicode": b'"\xf4\x90\x80\x80"',
    "five bytes": b'"\xf8\x88\x80\x80\x80"',
    "cut character": b'"\xe2\x82"',
    "lone continuation": b'"\x80"',
    "byte order mark": b"\xef\xbb\xbf1",
    **{f"control character {code:02x}": b'"%c"' % code for code in range(0x20)},
}
# The places in a request where such a value is put.
PLACES: dict[str, bytes] = {
    "payload": b'{"target":"sms","payload":%s}',
    "a member of the payload": b'{"target":"sms","payload":{"x":[%s]}}',
    "metadata": b'{"target":"sms","payload":1,"metadata":{"x":%s}}',
}
# Members with values of the wrong type or out of range.
MEMBERS: dict[str, list[object]] = {
    "target": [None, 1, True, 1.5, [], {}, "", "x" * 65, "a\nb", "a\u0085b"],
    "payload": [None],
    "body": ["", 1, [], "!!!!", "YQ", "YQ==\n", "ä", {}],
    "content_type": ["text/plain", 1, "a\r\nX: y"],
    "idempotency_key": ["", 1, [], {}, True, "x" * 256, "a\r\nb", "a\tb", "a\x7fb", "a\u0000b"],
    "stream": ["", 1, [], {}, False, "x" * 256, "a\nb"],
    "priority": [-1, 4, 1.5, "1", True, [], {}, 2**31, -(2**63), 10**30],
    "due_at": [
        0,
        1e18,
        "now",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "2030-13-01T00:00:00Z",
        [],
        "2030-01-01T00:00:00+99:00",
        "9999-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1970-01-01T00:00:00+01:00",
        "infinity",
        "\uff12030-01-01T00:00:00Z",
        True,
    ],
    "delay_seconds": [-1, "1", 1e300, True, [], {}, 315_360_001],
    "deadline_at": [0, "now", "1970-01-01T00:00:00Z", "infinity", [], True],
    "deadline_seconds": [-1, 0, "1", 1e300, True, {}],
    "metadata": [1, "x", [], True, {"x": "y" * 20_000}],
    "key_scope": ["tenant", "", "ALL", 1, True, ["all"]],
    "trace_context": ["00-x"],
    "__proto__": [{}],
    "constructor": [1],
    "intent_id": ["018f0000-0000-7000-8000-000000000000"],
    "": [1],
    "\u0000": [1],
}
KINDS = [
    b"",
    b"Content-Type: \r\n",
    b"Content-Type: text/plain\r\n",
    b"Content-Type: text/json\r\n",
    b"Content-Type: application/xml\r\n",
    b"Content-Type: application/x-www-form-urlencoded\r\n",
    b"Content-Type: multipart/form-data; boundary=x\r\n",
    b"Content-Type: application/jsonp\r\n",
    b"Content-Type: application/json; charset=utf-16\r\n",
    b"Content-Type: application/json; charset=latin-1\r\n",
    b"Content-Type: application/json, text/plain\r\n",
    b"Content-Type: */*\r\n",
    b"Content-Type: application/json\r\nContent-Type: text/plain\r\n",
    b"Content-Type: application/json\r\nContent-Type: application/json\r\n",
    b"Content-Type: application/json;\xff\r\n",
    b"Content-Type: json\r\n",
]
ENCODED = {
    "UTF-16": (b"", GOOD.decode().encode("utf-16")),
    "UTF-16 without a mark": (b"", GOOD.decode().encode("utf-16-le")),
    "UTF-32": (b"", GOOD.decode().encode("utf-32")),
    "UTF-7": (b"", b"+AHs-" + GOOD[1:]),
    "EBCDIC": (b"", GOOD.decode().encode("cp500")),
    "gzip that is not told": (b"", gzip.compress(GOOD)),
    "gzip": (b"Content-Encoding: gzip\r\n", gzip.compress(GOOD)),
    "gzip that unpacks to 100 MiB": (
        b"Content-Encoding: gzip\r\n",
        gzip.compress(b'{"target":"sms","payload":"' + b"a" * 100 * 2**20 + b'"}', 9),
    ),
    "deflate": (b"Content-Encoding: deflate\r\n", zlib.compress(GOOD)),
    "br": (b"Content-Encoding: br\r\n", GOOD),
    "gzip, twice": (b"Content-Encoding: gzip, gzip\r\n", gzip.compress(gzip.compress(GOOD))),
    "x-gzip": (b"Content-Encoding: x-gzip\r\n", gzip.compress(GOOD)),
    "an encoding of no name": (b"Content-Encoding: \xff\r\n", GOOD),
}
KEYS = [
    b"Idempotency-Key: \r\n",
    b"Idempotency-Key: a\tb\r\n",
    b"Idempotency-Key: " + b"x" * 256 + b"\r\n",
    b"Idempotency-Key: caf\xe9\r\n",
    b"Idempotency-Key: \xc3\xa9\r\n",
    b"Idempotency-Key: a\r\nIdempotency-Key: a\r\n",
    b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n",
    b"Host: other\r\n",
    b"Authorization: Bearer x\r\n",
]
# Not HTTP, or more than a head may have.
HEADS = [
    b"X-A: b\r\n c\r\n",
    b"X-A : b\r\n",
    b" X-A: b\r\n",
    b"X-A\r\n",
    b": b\r\n",
    b"X\x00A: b\r\n",
    b"X-A: b\x00\r\n",
    b"X-A: b\x01\r\n",
    b"X(A): b\r\n",
    b"X A: b\r\n",
    b"X-A: b\rX-B: c\r\n",
    b"Idempotency-Key: a\x00b\r\n",
    b"Idempotency-Key: a\x7fb\r\n",
    b"Idempotency-Key: a\rb\r\n",
    b"Idempotency-Key: a\nb\r\n",
    b"Idempotency-Key: a\r\n b\r\n",
    b"Idempotency-Key: \x0b\r\n",
    b"X-A: " + b"a" * 40_000 + b"\r\n",
    b"X-A: b\r\n" * 120,
    b"\xff\xfe: b\r\n",
    b"Cookie: " + b"a=b; " * 8000 + b"\r\n",
]
FRAMINGS: dict[str, bytes] = {
    "length, then chunks": b"Content-Length: 28\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, then length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths that differ": b"Content-Length: 28\r\nContent-Length: 5\r\n\r\n" + GOOD,
    "list of lengths": b"Content-Length: 28, 28\r\n\r\n" + GOOD,
    "negative length": b"Content-Length: -28\r\n\r\n" + GOOD,
    "length with a plus": b"Content-Length: +28\r\n\r\n" + GOOD,
    "hexadecimal length": b"Content-Length: 0x1c\r\n\r\n" + GOOD,
    "length with a point": b"Content-Length: 28.0\r\n\r\n" + GOOD,
    "length with a space": b"Content-Length: 2 8\r\n\r\n" + GOOD,
    "length of no number": b"Content-Length: x\r\n\r\n" + GOOD,
    "length beyond 64 bits": b"Content-Length: 99999999999999999999999\r\n\r\n" + GOOD,
    "length of 10 GB": b"Content-Length: 10000000000\r\n\r\n" + GOOD,
    "no length": b"\r\n" + GOOD,
    "two chunked": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(GOOD),
    "chunked, then identity": b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked(GOOD),
    "identity": b"Transfer-Encoding: identity\r\n\r\n" + GOOD,
    "gzip, then chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(GOOD),
    "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(GOOD),
    "chunked before a tab": b"Transfer-Encoding: chunked\x0b\r\n\r\n" + chunked(GOOD),
    "quoted": b'Transfer-Encoding: "chunked"\r\n\r\n' + chunked(GOOD),
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + chunked(GOOD),
    "folded": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + chunked(GOOD),
    "hidden behind a carriage return": b"X: y\rTransfer-Encoding: chunked\r\n\r\n" + chunked(GOOD),
    "size that is no number": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + GOOD,
    "negative size": b"Transfer-Encoding: chunked\r\n\r\n-1c\r\n" + GOOD + b"\r\n0\r\n\r\n",
    "size beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n" + GOOD,
    "size with 0x": b"Transfer-Encoding: chunked\r\n\r\n0x1c\r\n" + GOOD + b"\r\n0\r\n\r\n",
    "size with a space": b"Transfer-Encoding: chunked\r\n\r\n 1c\r\n" + GOOD + b"\r\n0\r\n\r\n",
    "line feeds between chunks": b"Transfer-Encoding: chunked\r\n\r\n1c\n" + GOOD + b"\n0\n\n",
    "chunk that is longer than its size": (
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + GOOD + b"\r\n0\r\n\r\n"
    ),
    "chunks over the limit": (
        b"Transfer-Encoding: chunked\r\n\r\n"
        + chunked(b'{"target":"sms","payload":"' + b"x" * 2_000_000 + b'"}')
    ),
    "a byte per chunk": (
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    ),
    "trailers over the limit": trailed(b"X: y\r\n" * 3000 + b"\r\n"),
    "a trailer over the limit": trailed(b"X: " + b"y" * 20_000 + b"\r\n\r\n"),
    "a trailer without an end": trailed(b"X: " + b"y" * 600_000),
    "a trailer's name without an end": trailed(b"x" * 600_000),
    "an extension without an end": b"Transfer-Encoding: chunked\r\n\r\n1c;" + b"x" * 600_000,
}
# Unusual, but a server may accept them (RFC 9112, section 2.2, and RFC 9110, section 8.6), and ours
# does. Each must be one request, however it is read.
TOLERATED: dict[str, bytes] = {
    "a header that ends with a line feed": posting(GOOD, b"X-A: b\nX-B: c\r\n"),
    "a request with line feeds only": posting(GOOD).replace(b"\r\n", b"\n"),
    "a length twice": head(b"POST /v1/intents", JSON, b"Content-Length: 28\r\n" * 2) + GOOD,
    "chunks behind a line feed": head(
        b"POST /v1/intents", JSON, b"X: y\nTransfer-Encoding: chunked\r\n"
    )
    + chunked(GOOD),
}
LINES = [
    b"GET /healthz\r\n\r\n",
    b"GET  /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.2\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP\r\nHost: x\r\n\r\n",
    b"GET /healthz XTTP/1.1\r\nHost: x\r\n\r\n",
    b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    b"\x00" * 1000,
    b"\xff" * 1000,
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /healthz\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"EHLO x\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"{}\r\n\r\n",
]
# The beginning of HTTP/2: a client that knows no HTTP/1.1 could not read a response.
CLOSED = {"HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}
# A request may still follow. Time ends these, not their content.
UNFINISHED = {"a first line without an end": b"A" * 50_000, "empty lines": b"\r\n" * 20_000}
ADDRESSES = [
    b"//",
    b"/v1",
    b"/v1/",
    b"/v1/intents/",
    b"/V1/INTENTS",
    b"/v1/intents%2f",
    b"/v1/intents%00",
    b"/v1/../etc/passwd",
    b"/..%2f..%2fetc%2fpasswd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/v1/intents/..",
    b"/v1/intents/%00",
    b"/v1/intents/%ff",
    b"/v1/intents/%u0000",
    b"/v1/intents/1",
    b"/v1/intents/x/attempts",
    b"/v1/intents/00000000-0000-0000-0000-000000000000",
    b"/v1/intents/{}",
    b"/v1/intents/" + b"a" * 5000,
    b"/v1/intents/018f0000-0000-7000-8000-000000000000/../..",
    b"/v1/intents?limit=0",
    b"/v1/intents?limit=-1",
    b"/v1/intents?limit=1e3",
    b"/v1/intents?limit=99999999999999999999",
    b"/v1/intents?limit=",
    b"/v1/intents?limit=1&limit=x",
    b"/v1/intents?status=PENDING",
    b"/v1/intents?status=%00",
    b"/v1/intents?target=%00",
    b"/v1/intents?target=%0a",
    b"/v1/intents?target=" + b"a" * 65,
    b"/v1/intents?stream=%00",
    b"/v1/intents?before=x",
    b"/v1/intents?before=%00",
    b"/v1/intents?since=x",
    b"/v1/intents?since=infinity",
    b"/v1/intents?until=-infinity",
    b"/v1/intents?since=0",
    b"/v1/intents?since=1969-12-31T23:59:59Z",
    b"/v1/intents?since=2030-01-01T00:00:00",
    b"/v1/intents?x=y",
    b"/v1/intents?" + b"a=b&" * 5000,
    b"/v1/intents?%00=1",
    b"/v1/instances?after=%00",
    b"/v1/instances?limit=201",
    b"/v1/leases?prefix=%00",
    b"/v1/leases?prefix=" + b"a" * 300,
    b"/v1/leases?after=%7f",
    b"/v1/events?last_event_id=x",
    b"/v1/events?target=%00",
    b"/v1/events?last_event_id=" + b"1" * 200,
    b"/v1/redrive",
    b"/docs",
    b"/redoc",
    b"/.env",
    b"/.git/config",
    b"/server-status",
    b"/metrics/",
    b"/openapi.yaml",
    b"/v1/stats/x",
]
WAITS = [
    b"31",
    b"-1",
    b"x",
    b"nan",
    b"inf",
    b"1e3",
    b"",
    b"%00",
    b"1&wait_seconds=99",
    b"0x1",
    b"1_0",
    b" 1",
]
BODIES: dict[str, bytes] = {
    "no body": b"",
    "a space": b" ",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "true": b"true",
    "an empty object": b"{}",
    "two objects": GOOD + GOOD,
    "garbage at the end": GOOD + b"x",
    "NUL at the end": GOOD + b"\0",
    "a million spaces": b" " * 1_000_000,
    "a million quotes": b'"' * 1_000_000,
    "a million backslashes": b'"' + b"\\" * 1_000_000,
    "payload twice": GOOD[:-1] + b',"payload":2}',
    "target twice": GOOD[:-1] + b',"t\\u0061rget":"mail"}',
    "an unknown member": GOOD[:-1] + b',"x":1}',
    "over the limit": b'{"target":"sms","payload":"' + b"x" * 1_500_000 + b'"}',
    "a payload over the limit": b'{"target":"sms","payload":"' + b"x" * 1_048_577 + b'"}',
    "a payload that grows beyond the limit": b'{"target":"sms","payload":['
    + b"1," * 400_000
    + b"1]}",
    "form": b"target=sms&payload=1",
    "XML": b"<intent/>",
    "YAML": b"target: sms\npayload: 1\n",
    "a payload of nothing": b'{"target":"sms","payload":}',
}


def all_hostile() -> Iterator[Hostile]:
    """Yield every hostile request."""
    yield from _bodies()
    yield from _headers()
    for name, framing in FRAMINGS.items():
        data = head(b"POST /v1/intents", JSON)[:-2] + framing
        yield Hostile(f"framing: {name}", data, is_http=False)
    for number, line in enumerate(LINES):
        yield Hostile(f"first line {number}", line, is_http=False)
    for name, data in CLOSED.items():
        yield Hostile(name, data, is_http=False, ends="closed")
    for name, data in UNFINISHED.items():
        yield Hostile(name, data, is_http=False, ends="unfinished")
    for address in ADDRESSES:
        yield Hostile(f"GET {address[:40].decode()}", head(b"GET " + address))
    for wait in WAITS:
        first = b"POST /v1/intents?wait_seconds=" + wait
        data = posting(GOOD).replace(b"POST /v1/intents", first, 1)
        yield Hostile(f"wait {wait.decode()}", data, is_http=b" " not in wait)
    for method in (b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"PROPFIND"):
        request = head(method + b" /v1/intents", b"Content-Length: 0\r\n")
        yield Hostile(f"{method.decode()} of intents", request)


def _bodies() -> Iterator[Hostile]:
    for place, form in PLACES.items():
        for name, value in VALUES.items():
            yield Hostile(f"{name} in {place}", posting(form % value))
    for member, values in MEMBERS.items():
        for value in values:
            body = json.dumps({"target": "sms", "payload": 1} | {member: value}).encode()
            yield Hostile(f"{member} is {str(value)[:30]!r}", posting(body))
    for name, body in BODIES.items():
        yield Hostile(f"the body is {name}", posting(body))


def _headers() -> Iterator[Hostile]:
    for number, kind in enumerate(KINDS):
        yield Hostile(f"content type {number}", posting(GOOD, kind=kind))
    for name, (header, body) in ENCODED.items():
        yield Hostile(name, posting(body, header))
    for number, key in enumerate(KEYS):
        yield Hostile(f"key {number}", posting(GOOD, key))
    for number, header in enumerate(HEADS):
        yield Hostile(f"header {number}", posting(GOOD, header), is_http=False)
