"""The command usage: what jobs were charged for over time."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from muster.cli.options import connect, json_option, namespace_option
from muster.cli.output import console, print_json, print_renderable, usage_error
from muster.errors import InvalidSpec
from muster.text import parse_time

if TYPE_CHECKING:
    from muster.visibility.reader import Listing
    from muster.visibility.types import UsageSummary


@click.command()
@click.option("--since", default="30d", metavar="30d", help="Start of the period: an age or a time. Default: 30d.")
@click.option("--until", metavar="1d", help="End of the period: an age or a time. Default: now.")
@click.option(
    "--by",
    type=click.Choice(["queue", "namespace", "user", "node"]),
    default="queue",
    metavar="queue|namespace|user|node",
    help="What to sum by; user is the job's label muster.dev/user; node or queue with --goodput. Default: queue.",
)
@click.option(
    "--step",
    type=click.Choice(["day", "hour"]),
    default="day",
    metavar="day|hour",
    help="Length of a step, in UTC. Default: day.",
)
@click.option(
    "--goodput",
    is_flag=True,
    help="Instead: what the time of each job since its submission was spent on, and of each queue.",
)
@namespace_option
@json_option
def usage(
    since: str, until: str | None, by: str, step: str, goodput: bool, namespace: str | None, as_json: bool
) -> None:
    """Show what jobs were charged for over time: GPU-hours by flavor, per queue, namespace or user."""
    now = time.time()
    if goodput:
        for option, is_given in (("--until", until is not None), ("--step", step != "day")):
            if is_given:
                usage_error(f"{option}: must not be used with --goodput, which shows each job until now", option)
        if by not in ("queue", "node"):
            usage_error(f"--by must be queue or node with --goodput; got {by}", "--by")
        _show_goodput(parse_time(since, now, "--since"), namespace, now, "json" if as_json else by)
        return
    if by == "node":
        usage_error("--by node must be used with --goodput; charges are by queue, namespace or user", "--by")
    first = parse_time(since, now, "--since")
    last = now if until is None else parse_time(until, now, "--until")
    if first >= last:
        end = "now" if until is None else f"--until {until}"
        usage_error(f"--since must be before {end}; got {since!r}", "--since")
    parameters = {"by": by, "step": step, "from": _to_parameter(first)}
    if until is not None:
        parameters["to"] = _to_parameter(last)
    try:
        found: Listing[UsageSummary] = connect().usage(parameters, namespace)
    except InvalidSpec as error:
        if error.field == "from":  # as the read API calls it
            usage_error(str(error).replace("from:", "--since:", 1), "--since")
        raise
    if as_json:
        print_json(found.items)
    elif not found.items:
        console().print("no usage in this period")
    else:
        from muster.cli.views.usage import usage_table

        print_renderable(usage_table(found, console().width))


def _show_goodput(since: float, namespace: str | None, now: float, form: str) -> None:
    """Of jobs that had not ended before `since`. `form`: json, or a table by queue or node."""
    from muster.cli.views.goodput import goodput_table, job_goodput

    client = connect()
    jobs = [job for job in client.jobs(namespace) if job.status.finished_at is None or job.status.finished_at >= since]
    found = [job_goodput(client, job, now) for job in jobs]
    if form == "json":
        print_json([asdict(one) for one in found])
    elif not found:
        console().print("no jobs in this period")
    else:
        print_renderable(goodput_table(found, "node" if form == "node" else "queue"))


def _to_parameter(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()
