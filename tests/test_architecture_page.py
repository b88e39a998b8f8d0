"""The path of a job in docs/concepts/architecture.md names modules and classes that exist."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

import muster

_PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "architecture.md"
_WALK = _PAGE.read_text().split("## From `torchx run` to the report")[1].split("\n## ")[0]
_NAMES = sorted(set(re.findall(r"`(muster(?:_operator|_components)?(?:\.\w+)+)`", _WALK)))
_MOST_STEPS = 30
_PACKAGES = _PAGE.read_text().split("## Packages and import rules")[1].split("\n### ")[0]


@pytest.mark.parametrize("name", _NAMES)
def test_each_name_of_the_walk_exists(name: str) -> None:
    pkgutil.resolve_name(name)  # raises for a name that is neither a module nor something in one


def test_the_walk_is_numbered_without_gaps_and_has_at_most_30_steps() -> None:
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", _WALK, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))
    assert 20 <= len(steps) <= _MOST_STEPS
    assert len(_NAMES) >= 20


def test_the_page_names_every_package_of_muster() -> None:
    modules = {f"muster.{module.name}" for module in pkgutil.iter_modules(muster.__path__)}
    named = set(re.findall(r"`(muster\.\w+)", _PACKAGES))
    assert modules - named == set()
    assert named - modules == set()
