"""Parsing of options, and the errors of invalid ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.job_documents import to_kubernetes_name, with_suffix
from muster.api.spec import MAX_JOB_NAME
from muster.torchx import settings


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("block", {"required": "block"}),
        (":rack", {"preferred": "rack"}),
        ("block:rack", {"required": "block", "preferred": "rack"}),
    ],
)
def test_a_topology_is_required_then_preferred(text: str, wanted: dict[str, str]) -> None:
    assert settings.parse_topology(text) == wanted


def test_lists_are_read_with_commas_semicolons_or_as_json() -> None:
    assert (
        settings.parse_list("h200, a100") == settings.parse_list("h200;a100") == settings.parse_list('["h200", "a100"]')
    )
    assert settings.parse_ranks("3,0,3") == [0, 3]


@pytest.mark.parametrize("name", ["flavors", "env", "image_pull_secrets"])
def test_torchx_reads_lists_on_its_command_line(name: str) -> None:
    options = settings.run_options("muster_local" if name == "env" else "muster")
    assert options.cfg_from_str(f"{name}=one;two,queue=red") == {name: ["one", "two"], "queue": "red"}


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (settings.parse_topology, ":", "must be REQUIRED, :PREFERRED or"),
        (settings.parse_topology, "a:b:c", "must be REQUIRED, :PREFERRED or"),
        (settings.parse_int, "high", "must be an integer"),
        (settings.parse_int, "9" * 5000, "must be an integer"),
        (settings.parse_replica_count, "9" * 5000, "must be a positive number of pods"),
        (settings.parse_step_count, "9" * 5000, "must be a positive number of steps"),
        (settings.parse_ranks, "0,x", "must be a list of ranks"),
        (settings.parse_ranks, "9" * 5000, "must be a list of ranks"),
        (settings.parse_list, "[1]", "must contain only strings"),
        (settings.parse_json_list, "{}", "must be a JSON list"),
        (settings.parse_json_list, "[", "must be a JSON list"),
    ],
)
def test_invalid_text_is_refused_with_the_valid_form(read: Callable[[str], Any], text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        read(text)


@given(st.text(max_size=80), st.integers(8, MAX_JOB_NAME))
def test_any_text_becomes_a_name_that_kubernetes_takes(text: str, longest: int) -> None:
    name = with_suffix(text, "a1b2c3", longest)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= longest
    assert name.endswith("-a1b2c3")


def test_a_name_keeps_what_can_be_kept() -> None:
    assert to_kubernetes_name("Train_GPT (v2)") == "train-gpt-v2"
    assert to_kubernetes_name("Über café №2") == "uber-cafe-no2"
    assert to_kubernetes_name("модель") == "job"
