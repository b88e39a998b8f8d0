"""Formatting, parsing, wrapping and sanitizing of text."""

from __future__ import annotations

import difflib
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from muster.errors import InvalidSpec
from muster.text import (
    closest_match,
    did_you_mean,
    name_hint,
    parse_future_time,
    parse_time,
    read_duration,
    read_step_range,
    sanitize,
    sanitize_keep_colors,
)
from muster.text_layout import wrap_parts

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
PIECES = st.sampled_from(
    ["\x1b", "\x1b[", "\x9b", "\x9d", "\x90", "]52;c;", "\x07", "\x1b\\", "31m", "1;31", "m", "H", "2J", "c", "\r",
     "\n", "\t", "text", " ", "0", ";", "P", "\x00", "\x7f", "\u202e", "\ud800", "é", "…", CLIPBOARD]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text()
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200), ("1h30m", 5400), ("45s", 45), ("1d", 86_400), ("90", 90), ("1d1h1m1s", 90_061), ("1.5h", 5400),
        (" 10m ", 600),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert read_duration(text) == seconds


def test_a_step_range_is_half_open() -> None:
    assert read_step_range("20:25") == (20, 5)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (read_duration, "2x", "must be a duration such as 2h"),
        (read_duration, "", "must be a duration"),
        (read_duration, "-5", "must be a duration"),
        (read_duration, "30m1h", "must be a duration"),
        (read_duration, "0s", "must be at least 1s"),
        (read_duration, "9" * 400 + "h", "must be a duration such as 2h, of at most 64 characters"),
        (read_duration, "9" * 5000, "must be a duration such as 2h, of at most 64 characters"),
        (read_step_range, "1:" + "9" * 5000, "must be a range of steps"),
        (read_step_range, "0:5", "must start at step 1 or later"),
        (
            read_step_range,
            "25:20",
            "must have END above FIRST, because step END is not included; write for example 25:30",
        ),
        (read_step_range, "20", "must be a range of steps FIRST:END, such as 20:25"),
        (read_step_range, "20:20", "must have END above FIRST"),
    ],
)
def test_invalid_text_is_refused_with_the_valid_form(read: Callable[[str], Any], text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        read(text)


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_the_parts_of_a_duration_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    assert read_duration(f"{days}d{hours}h{minutes}m{seconds}s") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def test_the_most_similar_name_is_suggested_and_none_if_none_is_similar() -> None:
    assert closest_match("reserch", ["default", "research", "search"]) == "research"
    assert closest_match("xyz", ["default", "research"]) is None
    assert closest_match("reserch", ["research"], min_similarity=0.99) is None
    assert closest_match("long", ["other", "long-b5e823f1", "long-a"]) == "long-a"
    assert closest_match("long", ["other", "long-b5e823f1", "long-a7d1c2e3"]) == "long-b5e823f1"
    assert closest_match("", ["-a"]) is None


def test_the_suggestion_from_a_set_is_the_same_in_every_process() -> None:
    assert closest_match("long", {f"long-{n:02}-{'x' * 20}" for n in range(50)}) == f"long-00-{'x' * 20}"


def test_of_many_names_only_those_next_to_the_unknown_one_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    compare = difflib.get_close_matches

    def count(name: str, names: Sequence[str], *options: Any) -> list[str]:
        compared.append(len(names))
        return compare(name, names, *options)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    known = {f"pool-{n:04}" for n in range(5000)}
    assert name_hint("pool-0000x", known, "flavor") == "did you mean 'pool-0000'?"
    assert name_hint("pool-4999x", known, "flavor") == "did you mean 'pool-4999'?"
    assert name_hint("tpu", known, "flavor").endswith("pool-0007 and 4992 more")
    assert compared == [200, 200, 200]


def test_the_sentence_ends_with_the_suggestion_or_with_the_fallback() -> None:
    assert did_you_mean("defualt", ["default"], "there are no others") == "did you mean 'default'?"
    assert did_you_mean("xyz", ["default"], "there is default") == "there is default"


def test_lines_are_broken_between_parts_and_begin_with_the_prefix() -> None:
    lines = wrap_parts(["four", Text("fiver", "red"), "six"], 12, prefix="  ")
    assert [line.plain for line in lines] == ["  four", "  fiver", "  six"]
    assert [line.plain for line in wrap_parts(["four", "fiver", "six"], 12)] == ["four · fiver", "six"]
    assert [line.plain for line in wrap_parts(["日本", "語"], 8, " ")] == ["日本 語"]
    assert wrap_parts([], 8) == []


@given(st.lists(st.text("ab", min_size=1, max_size=12)), st.integers(1, 40))
def test_no_part_is_lost_and_only_a_single_part_exceeds_the_width(parts: list[str], width: int) -> None:
    lines = [line.plain for line in wrap_parts(parts, width)]
    assert [part for line in lines for part in line.split(" · ")] == parts
    assert all(len(line) <= width or " · " not in line for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_control_sequences_are_removed(text: str, expected: str | None) -> None:
    assert sanitize(text) == (text if expected is None else expected)


def test_colours_are_kept_on_request_and_reset_at_the_end_of_the_line() -> None:
    assert sanitize_keep_colors("no colours") == "no colours"
    line = f"a \x1b[1;31mred{CLIPBOARD}\x1b[2K\x1b[38:5:1m b"
    assert sanitize_keep_colors(line) == "a \x1b[1;31mred\x1b[38:5:1m b\x1b[0m"


@given(TEXTS)
def test_no_control_character_is_left_except_in_colours(text: str) -> None:
    assert not CONTROL.search(sanitize(text))
    assert not CONTROL.search(re.sub(r"\x1b\[[0-9;:]*m", "", sanitize_keep_colors(text)))


@given(TEXTS)
def test_sanitizing_twice_equals_sanitizing_once(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)
    assert sanitize(sanitize_keep_colors(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs")) | st.sampled_from("\n\t")))
def test_text_without_control_characters_is_unchanged(text: str) -> None:
    assert sanitize(text) == sanitize_keep_colors(text) == text


@pytest.mark.parametrize("repeated", ["\x9d", "\x1b]", "\x1b]0;a\x07\x1bP", "\x1b[", "\x1b[0/", "\x9b"])
def test_text_is_sanitized_in_linear_time(repeated: str) -> None:
    """Logs and messages are of users' programs, and the operator reads them, too."""
    program = f"from muster.text import sanitize; sanitize({repeated!r} * 1_000_000)"
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # noqa: E731
    assert subprocess.run([sys.executable, "-c", program], preexec_fn=limit, check=False).returncode == 0


def test_a_time_to_come_is_a_duration_a_time_of_day_or_a_date() -> None:
    now = datetime(2026, 11, 29, 17, 30).astimezone().timestamp()
    assert parse_future_time("2h", now, "--begin") == now + 7200
    assert parse_future_time("18:00", now, "--begin") == now + 1800
    assert parse_future_time("17:00", now, "--begin") == datetime(2026, 11, 30, 17, 0).astimezone().timestamp()
    assert parse_future_time("1970-01-01T00:01:00Z", now, "--begin") == 60.0
    with pytest.raises(InvalidSpec, match="--begin: 'x' must be a duration"):
        parse_future_time("x", now, "--begin")
    with pytest.raises(InvalidSpec, match="--begin: '99999999d' must be"):
        parse_future_time("99999999d", now, "--begin")


def test_the_time_before_a_very_long_duration_is_one_that_can_be_shown() -> None:
    assert datetime.fromtimestamp(parse_time("99999999d", 1.8e9, "--since"), UTC).year == 1970
