"""Strict JSON: what we accept PostgreSQL accepts too, and it is kept as written."""

from __future__ import annotations

import json

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.domain.intent import JsonDocument
from leasehold.web.strict_json import (
    NotStrictJson,
    _unique,
    parse_json,
    parse_object,
    parse_objects,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
# Almost JSON: random combinations of its parts.
PIECES = st.sampled_from(
    [
        *(
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            '"',
            "\\",
            " ",
            "\n",
            "\t",
            "\x0b",
            "-",
            "+",
            ".",
            "e",
            "E",
        ),
        *("0", "1", "9", "00", "1e5", "1e400", "null", "true", "NaN", "Infinity", '"a"', '"a":1'),
        *(
            "\\u0041",
            "\\u0000",
            "\\ud800",
            "\\udc00",
            "\\ud83d\\ude00",
            "\\n",
            "\\x",
            "é",
            "\u2028",
        ),
        *('"a":1,"a":2', "{}", "[]", "//", "/**/", "'a'"),
    ]
)
# Other examples in each run; pytest prints the seed.
MANY = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@MANY
@given(value=VALUES, ascii_only=st.booleans(), spread=st.booleans())
def test_any_valid_json_is_accepted_and_kept_as_written(value, ascii_only, spread):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spread else None)
    assert parse_json(text.encode()) == value
    body = f' {{ "payload" : {text} , "other":[1] }} '.encode()
    found = parse_object(body, {"payload"})
    assert found["payload"] == JsonDocument(text.encode())
    assert found["other"] == [1]
    batch = f'{{"intents": [ {body.decode()} , {{}} ] }}'.encode()
    assert parse_objects(batch, "intents", {"payload"}) == [found, {}]


@pytest.fixture(scope="module")
def postgresql(server):
    """Parses JSON with PostgreSQL; None if it is refused."""
    with psycopg.connect(server.url, autocommit=True) as connection:

        def read(text: str) -> str | None:
            try:
                return connection.execute("SELECT %s::text::jsonb::text", [text]).fetchone()[0]
            except psycopg.Error:
                return None

        yield read


@MANY
@given(pieces=st.lists(PIECES, max_size=12))
def test_json_that_postgresql_refuses_is_refused_before(postgresql, pieces):
    for text in ("".join(pieces), f'"{"".join(pieces)}"', f"[{''.join(pieces)}]"):
        try:
            parse_json(text.encode())
        except NotStrictJson:
            continue
        assert postgresql(text) is not None, text


@MANY
@given(body=st.binary(max_size=40))
def test_any_bytes_are_parsed_or_refused_without_another_error(body):
    for read in (
        parse_json,
        lambda one: parse_object(one, {"a"}),
        lambda one: parse_objects(one, "a", ()),
    ):
        try:
            read(body)
        except NotStrictJson:
            continue


def test_duplicate_names_are_found_in_linear_time():
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(number) for number in range(500)] + [Name(499)]
    with pytest.raises(NotStrictJson, match="of the same name"):
        _unique([(name, None) for name in names])
    assert compared < 2 * len(names)
