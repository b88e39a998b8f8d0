"""-h: plain, whole, and within the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click
import pytest
from tests.cli.conftest import Muster

from muster.cli.app import cli

_BRACKETED = {"[OPTIONS]", "[ROLE=]N", "[ROLE=]N...", "[JOB...]", "[KIND]", "[NAME...]", "[OUT.json]"}


def verbs(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, *words, name)


cli.load_all(click.Context(cli))
ALL = dict(verbs(cli))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(words) or "muster")
def test_the_help_of_every_verb_is_plain_whole_and_within_the_terminal(
    muster: Muster, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ended = muster(*words, "-h")
    assert (ended.code, ended.err) == (0, "")
    usage, *lines = ended.out.splitlines()
    assert usage.startswith(" ".join(["Usage: muster", *words, ""]))
    assert set(re.findall(r"\[[^]]*\]\S*", ended.out)) <= _BRACKETED
    assert not re.search(r"[<>{}]", ended.out)
    assert [line for line in lines if line.endswith("...") or len(line) > columns] == []


@pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(words) or "muster")
def test_every_option_and_argument_of_a_verb_is_explained_in_a_sentence(muster: Muster, words: tuple[str, ...]) -> None:
    shown = " ".join(muster(*words, "-h").out.split())
    for param in ALL[words].params:
        assert param.help, param.name
        assert param.help.rstrip(".") in shown
        assert max(param.opts, key=len) in shown or param.param_type_name == "argument"


def test_what_must_be_written_stands_in_the_usage_line(muster: Muster) -> None:
    assert muster("simulate", "-h").out.splitlines()[0] == (
        "Usage: muster simulate --nodes NODES.csv --jobs JOBS.csv [OPTIONS]"
    )
    assert muster("scale", "-h").out.splitlines()[0] == "Usage: muster scale [OPTIONS] JOB [ROLE=]N..."
    assert muster("delete", "-h").out.splitlines()[0] == "Usage: muster delete [OPTIONS] [KIND] [NAME...]"


def test_the_version_is_that_of_the_package_and_unknown_without_an_installation(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert muster("--version").out == f"muster {metadata.version('muster')}\n"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("muster.version.installed", missing)
    ended = muster("--version")
    assert (ended.code, ended.out, ended.err) == (0, "muster unknown\n", "")
