"""The command `scale`: changes the number of pods of a job."""

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

_MAX_DIGITS = 18  # Python refuses to parse integers of thousands of digits
_MAX_TEXT_SHOWN = 80


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(scale)


def scale(
    job: JobArgument,
    replicas: Annotated[list[str], typer.Argument(metavar="[ROLE=]N", help="Number of pods of a role.")],
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the number of pods of a job. A running job restarts from a checkpoint at its new size."""
    client, (name, space) = connect(), split_job_name(job, namespace)
    before = client.job(name, space)
    requested = dict(_parse_replicas(text, before) for text in replicas)
    after = client.scale(name, space, requested)
    if as_json:
        print_json([after])
        return
    for role in after.spec.roles:
        if role.name in requested:
            count = pluralize(role.replicas, "replica")
            minimum = f", and starts with {role.min_replicas} or more" if role.is_elastic else ""
            message = f"trainingjob {space}/{name}: role {role.name} has {count}{minimum}"
            console().print(f"{message}{_growth_note(after, role, time.time())}", soft_wrap=True)


def _growth_note(job: TrainingJob, role: RoleSpec, now: float) -> str:
    """When an elastic role that runs with fewer pods can grow; empty for other roles."""
    running = job.status.elastic_replicas or 0
    if not role.is_elastic or not 0 < running < role.replicas:
        return ""
    from muster.model import GROWTH_REST_S

    since = max(job.status.admitted_at or 0.0, job.status.resized_at or 0.0)
    wait_s = since + GROWTH_REST_S - now
    earliest = f", in {format_duration(wait_s)} at the earliest" if wait_s > 0 else ""
    return f"; {running} running now: it grows into free resources that no pending job can use{earliest}"


def _parse_replicas(text: str, job: TrainingJob) -> tuple[str, int]:
    """(role, number) of `4` or `trainer=4`; a number alone is for the only role."""
    role, _, number = text.rpartition("=")
    if len(number) > _MAX_DIGITS or not number.isdecimal() or int(number) < 1:
        shown = repr(text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}...")
        usage_error(f"[ROLE=]N: must be a positive number of pods such as 4 or trainer=4; got {shown}", "replicas")
    names = [item.name for item in job.spec.roles]
    if not role and len(names) > 1:
        usage_error(f"[ROLE=]N: must name one of the job's roles: {', '.join(f'{n}={number}' for n in names)}")
    return role or names[0], int(number)
