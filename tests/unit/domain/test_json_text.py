"""JSON is written exactly, or refused: no digit is lost, and no key becomes another one."""

from __future__ import annotations

import json
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import JsonDocument
from leasehold.domain.json_text import json_text


class Currency(StrEnum):
    CHF = "CHF"


class Size(IntEnum):
    SMALL = 1


LOOP: list[object] = []
LOOP.append({"again": LOOP})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("0.12345678901234567890"), "0.12345678901234567890"),
        (Decimal("1.10"), "1.10"),
        (Decimal("-0"), "-0"),
        (Decimal("1E+3"), "1E+3"),
        (Decimal("9E+60"), "9E+60"),
        ({"amount": Decimal("1.10"), "x": [True, None, "\u20ac"]}, None),
        ([(1, 2.5), {"a": {"b": Decimal(7)}}], '[[1,2.5],{"a":{"b":7}}]'),
        (OrderedDict(a=1), '{"a":1}'),
        ({Currency.CHF: Size.SMALL}, '{"CHF":1}'),
        ({Currency.CHF: Decimal("0.1")}, '{"CHF":0.1}'),
        (JsonDocument(b'{"amount": 1.10}'), '{"amount": 1.10}'),
        ("\u20ac", '"\\u20ac"'),
    ],
    ids=str,
)
def test_value_is_written_exactly(value, text):
    written = json_text(value)
    assert written == (text or '{"amount":1.10,"x":[true,null,"\\u20ac"]}')


@pytest.mark.parametrize("beside", [0, Decimal(0)], ids=["plain", "beside a Decimal"])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1: 2}, "a key is of type int, but JSON has only text as keys"),
        ({True: 2}, "type bool"),
        ({None: 2}, "type NoneType"),
        ({1.5: 2}, "type float"),
        ({("a",): 2}, "type tuple"),
        ({Decimal(1): 2}, "type Decimal"),
        ([{"a": [{Size.SMALL: 1}]}], "type Size"),
        (Decimal("NaN"), "a Decimal is not a number"),
        (Decimal("sNaN"), "a Decimal is not a number"),
        (Decimal("-Infinity"), "a Decimal is not a number"),
        (Decimal("1E+309"), "out of range"),
        (Decimal("1E-325"), "out of range"),
        (Decimal("1." + "1" * 63), "more than 64 characters"),
        (float("nan"), "Out of range float"),
        (float("inf"), "Out of range float"),
        ({1, 2}, "set is not JSON serializable"),
        (b"bytes", "bytes is not JSON serializable"),
        (10**5000, "limit"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_value_that_json_cannot_hold_is_refused(value, told, beside):
    with pytest.raises(InvalidArgument, match=f"^is not valid JSON: .*{told}"):
        json_text([beside, value])


@pytest.mark.parametrize("beside", [0, Decimal(0)], ids=["plain", "beside a Decimal"])
def test_circular_value_is_refused(beside):
    with pytest.raises(InvalidArgument, match="is nested too deeply"):
        json_text([beside, LOOP])


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, width=32)
        | st.decimals(
            allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=9
        ),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ).filter(lambda value: "inf" not in repr(value))
)
def test_text_is_read_back_as_the_same_value(value):
    text = json_text(value)
    assert json.loads(text, parse_float=Decimal, parse_int=Decimal) == as_decimals(value)


def as_decimals(value):
    match value:
        case bool() | None | str():
            return value
        case dict():
            return {key: as_decimals(one) for key, one in value.items()}
        case list():
            return [as_decimals(one) for one in value]
        case _:
            return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
