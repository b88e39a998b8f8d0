"""Friendly forms: what is read, and what people are told when they mistype."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.torchx import forms


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("1h30m", 5400), ("45s", 45), ("1d", 86_400), ("90", 90), ("1d1h1m1s", 90_061)]
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert forms.read_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("block", {"required": "block"}),
        (":rack", {"preferred": "rack"}),
        ("block:rack", {"required": "block", "preferred": "rack"}),
    ],
)
def test_a_topology_is_required_then_preferred(text: str, wanted: dict[str, str]) -> None:
    assert forms.read_topology(text) == wanted


def test_a_window_is_half_open() -> None:
    assert forms.read_window("20:25") == (20, 5)


def test_lists_are_read_with_commas_semicolons_or_as_json() -> None:
    assert forms.read_list("h200, a100") == forms.read_list("h200;a100") == forms.read_list('["h200", "a100"]')
    assert forms.read_ranks("3,0,3") == [0, 3]


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (forms.read_duration, "2x", "is no duration; write one such as 2h"),
        (forms.read_duration, "", "is no duration"),
        (forms.read_duration, "-5", "is no duration"),
        (forms.read_duration, "0s", "lasts no time"),
        (forms.read_window, "0:5", "begins before the first step; steps count from 1"),
        (forms.read_window, "25:20", "ends before it begins"),
        (forms.read_window, "20", "is no range of steps; write FIRST:END, as 20:25"),
        (forms.read_window, "20:20", "ends before it begins"),
        (forms.read_topology, ":", "is no topology"),
        (forms.read_topology, "a:b:c", "is no topology"),
        (forms.read_whole, "high", "is no whole number"),
        (forms.read_ranks, "0,x", "is no list of ranks"),
        (forms.read_list, "[1]", "holds something else than texts"),
        (forms.read_json_list, "{}", "is no JSON list"),
        (forms.read_json_list, "[", "is no JSON"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_would_be_right(read: Callable[[str], Any], text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        read(text)


@given(st.text(max_size=80), st.integers(8, forms.LONGEST_NAME))
def test_any_text_becomes_a_name_that_kubernetes_takes(text: str, longest: int) -> None:
    name = forms.unique_name(text, "a1b2c3", longest)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= longest
    assert name.endswith("-a1b2c3")


def test_a_name_keeps_what_can_be_kept() -> None:
    assert forms.kubernetes_name("Train_GPT (v2)") == "train-gpt-v2"
