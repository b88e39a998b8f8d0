"""An empty argument, such as a shell variable that is not set, names nothing: an error says which argument it is."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job

from muster.cli.app import cli


def commands(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, *words, name)
    else:
        yield words, command


def arguments(command: click.Command) -> list[click.Argument]:
    return [one for one in command.params if isinstance(one, click.Argument)]


cli.load_all(click.Context(cli))
ARGUMENTS = [
    (words, place, argument.human_readable_name)
    for words, command in commands(cli)
    for place, argument in enumerate(arguments(command))
]
OPTIONS = [
    (words, len(arguments(command)), option.opts[0])
    for words, command in commands(cli)
    for option in command.params
    if isinstance(option, click.Option) and isinstance(option.type, click.types.StringParamType)
]


def test_every_command_is_found() -> None:
    found = {" ".join(words) for words, _, _ in ARGUMENTS}
    assert {"describe", "trace capture", "trace diff", "report", "delete", "drain", "scale", "bench compare"} <= found


@pytest.mark.parametrize(("words", "place", "name"), ARGUMENTS)
def test_an_empty_argument_of_any_command_is_refused_by_name(
    cluster: MemoryClient, muster: Muster, words: tuple[str, ...], place: int, name: str
) -> None:
    ended = muster(*words, *["queue"] * place, "", *["x"] * 3)
    assert (ended.code, ended.out, cluster.calls) == (2, "", [])
    assert "must not be empty" in ended.err
    assert name.strip("[].").split("|")[0] in ended.err


@pytest.mark.parametrize(("words", "count", "option"), OPTIONS)
def test_an_empty_option_of_any_command_is_refused_by_name(
    cluster: MemoryClient, muster: Muster, words: tuple[str, ...], count: int, option: str
) -> None:
    ended = muster(*words, option, "", *["queue"] * count)
    assert (ended.code, ended.out, cluster.calls) == (2, "", [])
    assert "must not be empty" in ended.err


@pytest.mark.parametrize(
    "words", [("trace", ""), ("describe", ""), ("jobs", "--namespace", ""), ("--context", "", "jobs")]
)
def test_the_error_has_the_field(cluster: MemoryClient, muster: Muster, words: tuple[str, ...]) -> None:
    error = muster(*words, "--json").error
    assert error["reason"] == "Usage"
    assert error["field"] in ("job", "--namespace", "--context")


@pytest.mark.parametrize("name", ["team/", "/llama", "/"])
@pytest.mark.parametrize("words", [("describe",), ("cancel", "llama"), ("delete", "job"), ("logs",)])
def test_a_job_with_an_empty_name_or_namespace_is_refused(
    cluster: MemoryClient, muster: Muster, words: tuple[str, ...], name: str
) -> None:
    cluster.kept_jobs = {"llama": job("llama")}
    ended = muster(*words, name, "--json")
    assert (ended.code, ended.error["reason"], ended.error["field"]) == (2, "Usage", "job")
    assert repr(name) in ended.error["message"]
    assert cluster.calls == []
