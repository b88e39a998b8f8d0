"""Lines of parts, each of which stays whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from muster.text.wrap import wrap_parts


def test_lines_are_broken_between_parts_and_begin_alike() -> None:
    lines = wrap_parts(["four", Text("fiver", "red"), "six"], 12, prefix="  ")
    assert [line.plain for line in lines] == ["  four", "  fiver", "  six"]
    assert [line.plain for line in wrap_parts(["four", "fiver", "six"], 12)] == ["four · fiver", "six"]
    assert [line.plain for line in wrap_parts(["日本", "語"], 8, " ")] == ["日本 語"]
    assert wrap_parts([], 8) == []


@given(st.lists(st.text("ab", min_size=1, max_size=12)), st.integers(1, 40))
def test_no_part_is_lost_and_only_a_part_alone_is_longer_than_a_line(parts: list[str], width: int) -> None:
    lines = [line.plain for line in wrap_parts(parts, width)]
    assert [part for line in lines for part in line.split(" · ")] == parts
    assert all(len(line) <= width or " · " not in line for line in lines)
