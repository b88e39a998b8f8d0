"""What a terminal is given of text that others wrote."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.text.sanitize import sanitize, sanitize_keep_colors

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
PIECES = st.sampled_from(
    ["\x1b", "\x1b[", "\x9b", "\x9d", "\x90", "]52;c;", "\x07", "\x1b\\", "31m", "1;31", "m", "H", "2J", "c", "\r",
     "\n", "\t", "text", " ", "0", ";", "P", "\x00", "\x7f", "\u202e", "\ud800", "é", "…", CLIPBOARD]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text()
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("loss 4.0, then 3.9 – 漢字 é\u00a0\t.", None),
        (f"a{CLIPBOARD}b", "ab"),
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x9d52;c;eA==\x9cb", "ab"),
        ("a\x1bP+q544e\x1b\\b\x1b_x\x1b\\c", "abc"),
        ("a\x1b[2J\x1b[1;1Hb\x1b[6nc\x9b31md", "abcd"),
        ("a\x1bcb\x1b(0c\x1b7d", "abcd"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]52;c;eA==", "a]52;c;eA=="),
        ("a\x1b[31\nb", "a[31\nb"),
        ("10%\r50%\r100%\r\ndone\r", "100%\ndone"),
        ("a\u202eb\x00c\x08d\x7fe\ud800f", "abcdef"),
    ],
)
def test_only_what_can_be_read_is_left(text: str, left: str | None) -> None:
    assert sanitize(text) == (text if left is None else left)


def test_colours_stay_in_a_line_where_they_are_wanted_and_end_with_it() -> None:
    assert sanitize_keep_colors("no colours") == "no colours"
    line = f"a \x1b[1;31mred{CLIPBOARD}\x1b[2K\x1b[38:5:1m b"
    assert sanitize_keep_colors(line) == "a \x1b[1;31mred\x1b[38:5:1m b\x1b[0m"


@given(TEXTS)
def test_nothing_that_a_terminal_obeys_is_left_but_colours(text: str) -> None:
    assert not OBEYED.search(sanitize(text))
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;:]*m", "", sanitize_keep_colors(text)))


@given(TEXTS)
def test_text_that_was_cleaned_once_stays_as_it_is(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)
    assert sanitize(sanitize_keep_colors(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs")) | st.sampled_from("\n\t")))
def test_text_without_control_characters_is_left_alone(text: str) -> None:
    assert sanitize(text) == sanitize_keep_colors(text) == text
