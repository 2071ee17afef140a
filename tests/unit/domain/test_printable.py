"""Text for a terminal: characters that it could act on are escaped."""

from __future__ import annotations

import pytest

from leasehold.domain.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 東 é 🎉", "plain ä 東 é 🎉"),
        ("a\u202eb", r"a\u202eb"),
        ("\x1b[31m", r"\u001b[31m"),
        ("\x7f\x9b", r"\u007f\u009b"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\u2066a\u200b\ufeff", r"\u2066a\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_character_that_a_terminal_acts_on_is_escaped(text, shown):
    assert printable(text) == shown


def test_only_the_characters_to_keep_stay_as_they_are():
    assert printable("a\nb\r", keep="\n") == "a\nb\\u000d"
