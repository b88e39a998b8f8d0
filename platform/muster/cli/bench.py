"""The commands bench run, compare and bisect: benchmarks as queued jobs, and whether a change made them slower."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import (
    FILE,
    PATH,
    SectionedGroup,
    connect,
    default_namespace,
    json_option,
    namespace_option,
    selected_context,
)
from muster.cli.output import CommandExit, ExitCode, print_json, print_note, print_renderable, usage_error
from muster.errors import InvalidSpec, Refused, install_extra

if TYPE_CHECKING:
    from muster.bench.session import Session, Side
    from muster.bench.suite import Suite
    from muster.local.worktrees import Repository

RESULTS_FOLDER = "muster-bench"
_suite_option = click.option("--suite", "suite_file", type=FILE, metavar="SUITE.yaml", help="The benchmarks.")
_out_option = click.option(
    "--out", "-o", type=PATH, metavar="FILE.jsonl",
    help=f"File of the results, which is continued if it exists; default: a new one in {RESULTS_FOLDER}.",
)  # fmt: skip


@click.group(cls=SectionedGroup)
def bench() -> None:
    """Run benchmarks, compare two versions, find the commit that made one slower."""


@click.command("run")
@click.argument("suite_file", type=FILE, metavar="SUITE.yaml", help="The benchmarks.")
@_out_option
@namespace_option
@json_option
def run_suite(suite_file: str, out: Path | None, namespace: str | None, as_json: bool) -> None:
    """Run a suite and record the times, for a later `bench compare`.

    The runs are a job. If the command is interrupted, the job continues; the same command with --out collects its runs.
    """
    from muster.bench.compare import suite_runs
    from muster.cli.views.bench import run_rows, run_table

    suite = _load_suite(suite_file)
    plan = {"kind": "run", **_working_tree_state(suite)}
    session = _session(suite, plan, _results_path(suite, out), namespace)
    with _hint_on_interrupt(session):
        session.execute(suite_runs(suite, _working_side("A", suite)))
    rows = run_rows(suite, session.results.runs)
    if as_json:
        print_json(rows)
    else:
        print_renderable(run_table(rows))
        print(f"results: {session.results.path}")
    if any(row["error"] for row in rows):
        raise CommandExit(ExitCode.JOB_FAILED)


@click.command()
@click.argument("a", metavar="A", help="The version to compare with: see below.")
@click.argument("b", metavar="B", help="The version to check.")
@_suite_option
@_out_option
@namespace_option
@json_option
def compare(a: str, b: str, suite_file: str | None, out: Path | None, namespace: str | None, as_json: bool) -> None:
    """Compare B with A. Exit code 5: a benchmark became slower.

    A and B are git revisions (`.` is the working tree), env:NAME=VALUE,..., cmd:COMMAND, or files of `bench run`.
    """
    from muster.bench.compare import compare_sides
    from muster.cli.views.bench import comparison_rows, comparison_table

    if all(os.path.isfile(text) for text in (a, b)):
        if suite_file is not None or out is not None:
            usage_error("--suite and --out: must be omitted with files of results", "--suite")
        results = _compare_files(Path(a), Path(b))
        place = None
    else:
        if suite_file is None:
            usage_error("--suite SUITE.yaml is required, unless A and B are files of results", "--suite")
        suite = _load_suite(suite_file)
        results_file = _results_path(suite, out)
        sources = _Sources(suite, results_file)
        sides = sources.side("A", a), sources.side("B", b)
        plan = {"kind": "compare", "sides": [sources.identity(text, name) for text, name in ((a, "A"), (b, "B"))]}
        if _is_working_tree(a) or _is_working_tree(b):
            plan |= _working_tree_state(suite)
        session = _session(suite, plan, results_file, namespace)
        with _hint_on_interrupt(session):
            results = compare_sides(session, *sides)
        sources.clean_up()
        place = session.results.path
    rows = comparison_rows(results)
    if as_json:
        print_json(rows)
    else:
        print_renderable(comparison_table(results))
        if place is not None:
            print(f"results: {place}")
    _exit_with_outcome([row["outcome"] for row in rows])


@click.command()
@click.argument("good", metavar="GOOD", help="A git revision that is fast enough.")
@click.argument("bad", metavar="BAD", help="A later git revision that is slower.")
@_suite_option
@_out_option
@namespace_option
@json_option
def bisect(good: str, bad: str, suite_file: str | None, out: Path | None, namespace: str | None, as_json: bool) -> None:
    """Find the commit between GOOD and BAD that made a benchmark slower.

    Each step compares a commit with GOOD. Commits that do not run are skipped. Exit code 5: a commit was found.
    """
    from muster.bench.bisection import Bisection
    from muster.cli.views.bench import bisect_row, bisect_text

    if suite_file is None:
        usage_error("--suite SUITE.yaml is required", "--suite")
    suite = _load_suite(suite_file)
    results_file = _results_path(suite, out)
    sources = _Sources(suite, results_file)
    first, last = sources.commit(good, "GOOD"), sources.commit(bad, "BAD")
    commits = sources.repository("GOOD").commits_between(first, last)
    if not commits:
        usage_error(f"BAD must be a commit after GOOD; both are {first[:12]}", "BAD")
    session = _session(suite, {"kind": "bisect", "good": first, "bad": last}, results_file, namespace)
    search = Bisection(
        session, first, commits, sources.folder_of, sources.done_with, print_note if not as_json else lambda text: None
    )
    with _hint_on_interrupt(session):
        result = search.run()
    sources.clean_up()
    describe = sources.repository("GOOD").describe
    if as_json:
        print_json([bisect_row(result, describe)])
    else:
        print_renderable(bisect_text(result, describe))
        print(f"results: {session.results.path}")
    _exit_with_outcome(["regression" if result.first_bad else result.whole.outcome])


bench.add_section("Verbs", run_suite, compare, bisect)


def _exit_with_outcome(outcomes: list[str | None]) -> None:
    """A regression counts more than a benchmark that could not be compared (None)."""
    if "regression" in outcomes:
        raise CommandExit(ExitCode.REGRESSION)
    if None in outcomes:
        raise CommandExit(ExitCode.JOB_FAILED)


def _load_suite(file: str) -> Suite:
    """Raises `InvalidSpec`, OSError."""
    from muster.api.yaml_input.source_map import MAX_BYTES
    from muster.bench.suite import parse_suite, resolve_suite

    path = Path(file)
    with path.open("rb") as stream:
        written = parse_suite(stream.read(MAX_BYTES + 1), file)
    if selected_context() is not None and written.image is None:
        usage_error(f"{file}: image: is required in a cluster; name an image with Muster and the programs", "image")
    commands: dict[str, tuple[list[str], dict[str, str]]] = {}
    for number, one in enumerate(written.benchmarks):
        if one.component is not None:
            commands[one.name] = _component(one.component, one.args, f"benchmarks[{number}].component")
    return resolve_suite(written, path, commands)


def _component(name: str, arguments: list[str], field: str) -> tuple[list[str], dict[str, str]]:
    try:
        from muster.torchx.component_command import component_command
    except ModuleNotFoundError as error:
        if error.name != "torchx":
            raise
        usage_error(f"{field}: components need TorchX; {install_extra('torchx')}; got {name!r}", field)
    return component_command(name, arguments, field)


def _results_path(suite: Suite, out: Path | None) -> Path:
    return out or Path(RESULTS_FOLDER) / f"{suite.name}-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.jsonl"


def _session(suite: Suite, plan: dict[str, Any], path: Path, namespace: str | None) -> Session:
    """Open the results file before anything is submitted."""
    from muster.bench.results import ResultsFile
    from muster.bench.session import Session

    whole = {**plan, "suite": suite.as_json(), "folder": str(suite.folder)}
    return Session(connect(), namespace or default_namespace(), suite, ResultsFile(path, whole), print_note)


@contextmanager
def _hint_on_interrupt(session: Session) -> Iterator[None]:
    """Within this context, an interrupt prints how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        job = session.results.jobs[-1] if session.results.jobs else None
        stop = f"; to stop its job: muster cancel {job.namespace}/{job.name}" if job else ""
        print(f"to continue: the same command with --out {session.results.path}{stop}", file=sys.stderr)
        raise


def _working_side(label: str, suite: Suite) -> Side:
    """The sources as they are: in a cluster those of the image."""
    from muster.bench.session import Side

    return Side(label, None if selected_context() is not None else str(suite.folder))


def _is_working_tree(text: str) -> bool:
    """Whether a side is made of the sources as they are, not of a revision."""
    return text == "." or text.startswith(("env:", "cmd:"))


def _working_tree_state(suite: Suite) -> dict[str, str]:
    """For the plan: results of other sources are not continued. Empty in a cluster and outside of a repository."""
    from muster.local.worktrees import Repository

    if selected_context() is not None:
        return {}
    try:
        return {"sources": Repository.containing(suite.folder).state()}
    except (InvalidSpec, Refused):
        return {}


def _compare_files(a: Path, b: Path) -> Any:
    from muster.bench.compare import compare_recorded

    print_note("note: the runs of two files are not interleaved: changes of the machine between them count too")
    return compare_recorded(a, b)


class _Sources:
    """Sides from the words of the command line; the worktrees of revisions, which are removed in the end."""

    def __init__(self, suite: Suite, results_file: Path) -> None:
        self._suite = suite
        self._results_file = results_file
        self._repository: Repository | None = None
        self._commits: set[str] = set()

    def side(self, label: str, text: str) -> Side:
        """Raises `InvalidSpec`."""
        from dataclasses import replace

        from muster.bench.session import Side

        here = _working_side(label, self._suite)
        if text == ".":
            return here
        if text.startswith("env:"):
            return replace(here, env=tuple(_parse_env(text.removeprefix("env:"), label)))
        if text.startswith("cmd:"):
            words = shlex.split(text.removeprefix("cmd:"))
            if not words:
                usage_error(f"{label}: cmd: must be followed by a command; got {text!r}", label)
            return replace(here, command=tuple(words))
        return Side(label, self.folder_of(self.commit(text, label)))

    def identity(self, text: str, label: str) -> str:
        """What must be equal for the results of a side to be continued."""
        return text if _is_working_tree(text) else self.commit(text, label)

    def repository(self, field: str) -> Repository:
        """The suite's repository. Raises `InvalidSpec`."""
        from muster.local.worktrees import Repository

        if selected_context() is not None:
            usage_error(f"{field}: git revisions can be compared on this host only; use env: or cmd:", field)
        if self._repository is None:
            self._repository = Repository.containing(self._suite.folder)
        return self._repository

    def commit(self, text: str, field: str) -> str:
        """The hash of a revision."""
        return self.repository(field).commit(text, field)

    def folder_of(self, commit: str) -> str:
        """The suite's folder in the worktree of a commit."""
        repository = self.repository("A")
        self._commits.add(commit)
        folder = repository.worktree(commit, self._results_file)
        return str(folder / self._suite.folder.relative_to(repository.top.resolve()))

    def done_with(self, commit: str) -> None:
        """Remove the worktree of a commit."""
        self._commits.discard(commit)
        self.repository("A").remove(commit, self._results_file)

    def clean_up(self) -> None:
        """Remove all worktrees of this command."""
        for commit in sorted(self._commits):
            self.done_with(commit)


def _parse_env(text: str, label: str) -> Iterator[tuple[str, str]]:
    from muster.api.env_vars import is_valid_name

    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not is_valid_name(name) or name.startswith("MUSTER_"):
            usage_error(f"{label}: env: must be followed by NAME=VALUE,...; got {part!r}", label)
        yield name, value
