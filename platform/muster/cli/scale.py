"""The verb `scale`: how many pods a job has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.completion import JobArgument, JsonOption, NamespaceOption, split_job_name
from muster.cli.connect import connect
from muster.cli.exit_codes import usage_error
from muster.cli.output import console, print_json
from muster.text.humanize import format_duration, pluralize

if TYPE_CHECKING:
    from muster.spec import RoleSpec, TrainingJob

_MAX_DIGITS = 18  # far beyond any job, and far below what Python refuses to read
_MAX_TEXT_SHOWN = 80


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command()(scale)


def scale(
    job: JobArgument,
    replicas: Annotated[list[str], typer.Argument(metavar="[ROLE=]N", help="Number of pods, of a role.")],
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change how many pods a job has. One that runs goes on from a checkpoint at its new size."""
    client, (name, space) = connect(), split_job_name(job, namespace)
    before = client.job(name, space)
    wanted = dict(_parse_replicas(text, before) for text in replicas)
    after = client.scale(name, space, wanted)
    if as_json:
        print_json([after])
        return
    for role in after.spec.roles:
        if role.name in wanted:
            least = f", and starts with {role.min_replicas} or more" if role.is_elastic else ""
            has = pluralize(role.replicas, "replica")
            told = (
                f"trainingjob {space}/{name}: role {role.name} has {has}{least}{_grows_later(after, role, time.time())}"
            )
            console().print(told, soft_wrap=True)


def _grows_later(job: TrainingJob, role: RoleSpec, now: float) -> str:
    """Of an elastic role that runs with fewer pods: that it does not grow at once, and when at the earliest."""
    running = job.status.elastic_replicas or 0
    if not role.is_elastic or not 0 < running < role.replicas:
        return ""
    from muster.model import GROWTH_REST_S

    since = max(job.status.admitted_at or 0.0, job.status.resized_at or 0.0)
    rest = since + GROWTH_REST_S - now
    when = f", in {format_duration(rest)} at the earliest" if rest > 0 else ""
    return f"; {running} of them now: it grows once there is room that no waiting job can use{when}"


def _parse_replicas(text: str, job: TrainingJob) -> tuple[str, int]:
    """(role, number) of `4` or `trainer=4`; a number alone is of the only role."""
    role, _, number = text.rpartition("=")
    if len(number) > _MAX_DIGITS or not number.isdecimal() or int(number) < 1:
        told = repr(text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}...")
        usage_error(f"[ROLE=]N: {told} is no number of pods; write one such as 4 or trainer=4", "replicas")
    names = [item.name for item in job.spec.roles]
    if not role and len(names) > 1:
        usage_error(f"[ROLE=]N: the job has several roles; write one of {', '.join(f'{n}={number}' for n in names)}")
    return role or names[0], int(number)
