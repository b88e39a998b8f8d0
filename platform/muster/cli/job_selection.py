"""The jobs that cancel, suspend and resume act on: named ones, or all that match options."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster.cli.options import (
    complete_job_names,
    complete_phases,
    default_list_namespace,
    json_option,
    namespace_option,
    queue_option,
    split_job_name,
)
from muster.cli.output import print_note, usage_error
from muster.client import ClusterClient
from muster.errors import NotFound, Refused
from muster.text import pluralize

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob

_Callback = TypeVar("_Callback", bound=Callable[..., object])
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class JobSelection:
    """Names, or conditions that jobs must all match; `everything`: all jobs, after a question."""

    names: tuple[str, ...] = ()
    namespace: str | None = None
    queue: str | None = None
    phases: frozenset[str] | None = None
    pattern: str | None = None
    everything: bool = False
    confirmed: bool = False

    def __post_init__(self) -> None:
        """Raises `InvalidSpec` Usage if nothing is selected, or if names and conditions are."""
        conditions = self.everything or (self.queue, self.phases, self.pattern) != (None, None, None)
        if self.names and conditions:
            usage_error("JOB: must not be used with --queue, --phase, --name or --all", "jobs")
        if not self.names and not conditions:
            usage_error("JOB: must name jobs, or use --queue, --phase, --name 'sweep-*' or --all", "jobs")

    def matches(self, job: TrainingJob) -> bool:
        """Whether a job meets the conditions."""
        return (
            self.queue in (None, job.spec.queue)
            and (self.phases is None or job.status.phase in self.phases)
            and (self.pattern is None or fnmatch.fnmatchcase(job.metadata.name, self.pattern))
        )


def selection_options(command: _Callback) -> _Callback:
    """The argument and the options of a `JobSelection`."""
    for add in reversed(
        (
            click.argument(
                "jobs", metavar="[JOB...]", nargs=-1, help="Jobs: NAME or NAMESPACE/NAME.",
                shell_complete=complete_job_names,
            ),
            queue_option,
            click.option("--phase", metavar="PHASE,...", help="Jobs in these phases.", shell_complete=complete_phases),
            click.option("--name", metavar="'sweep-*'", help="Jobs whose names match, with * and ?."),
            click.option("--all", "everything", is_flag=True, help="All jobs; asks."),
            click.option("--yes", "-y", is_flag=True, help="With --all: unasked."),
            namespace_option,
            json_option,
        )
    ):  # fmt: skip
        command = add(command)
    return command


def parse_selection(given: dict[str, Any]) -> JobSelection:
    """The selection of the values of `selection_options`. Raises `InvalidSpec` Usage."""
    phases = None if given["phase"] is None else parse_phases(given["phase"])
    return JobSelection(
        given["jobs"], given["namespace"], given["queue"], phases, given["name"], given["everything"], given["yes"]
    )


def select_jobs(
    client: ClusterClient, selection: JobSelection, past_tense: str, applies: Callable[[TrainingJob], bool]
) -> list[tuple[str, str]]:
    """(name, namespace) of the named jobs, or of those that match and to which the command `applies`. Raises `NotFound`
    if no job matches, `Refused` NotConfirmed if the answer to the question of --all is not yes."""
    if selection.names:
        return list(dict.fromkeys(split_job_name(name, selection.namespace) for name in selection.names))
    listed = client.jobs(selection.namespace or default_list_namespace())
    keys = [
        (job.metadata.name, job.metadata.namespace or "default")
        for job in listed
        if selection.matches(job) and applies(job)
    ]
    if not keys:
        raise NotFound(f"no job that can be {past_tense} matches; see: muster jobs")
    if selection.everything and not selection.confirmed:
        _confirm(keys, past_tense)
    return keys


def _confirm(keys: list[tuple[str, str]], past_tense: str) -> None:
    names = ", ".join(f"{namespace}/{name}" for name, namespace in keys[:_MAX_NAMES])
    more = f" and {len(keys) - _MAX_NAMES} more" if len(keys) > _MAX_NAMES else ""
    if not sys.stdin.isatty():
        message = f"--all: must be used with --yes if stdin is not a terminal; nothing was {past_tense}"
        raise Refused(message, field="--all", reason="NotConfirmed")
    print_note(f"{pluralize(len(keys), 'job')} will be {past_tense}: {names}{more}")
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(f"nothing was {past_tense}", reason="NotConfirmed")


def parse_phases(text: str) -> frozenset[str]:
    """Parse `Running,Pending`, case-insensitive. Raises `InvalidSpec` Usage that suggests the nearest phase."""
    from muster.cli.views.job_text import PHASE_STYLES
    from muster.text import did_you_mean

    names = [name.strip() for name in text.split(",") if name.strip()]
    valid = f"valid phases: {', '.join(PHASE_STYLES)}"
    if not names:
        usage_error(f"--phase: must name at least one phase; got {text!r}; {valid}", "--phase")
    for name in names:
        if name.capitalize() not in PHASE_STYLES:
            hint = did_you_mean(name.capitalize(), PHASE_STYLES, valid)
            usage_error(f"--phase: unknown phase {name!r}; {hint}", "--phase")
    return frozenset(name.capitalize() for name in names)
