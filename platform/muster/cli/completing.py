"""What the shell offers when a name is to be completed. Silent and quick: no daemon is started for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer


def _names(ask: Callable[[], list[str]], incomplete: str) -> list[str]:
    try:
        return sorted({name for name in ask() if name.startswith(incomplete)})
    except Exception:
        return []  # an error would end up in the middle of the user's command line


def _job_names(incomplete: str) -> list[str]:
    from muster.cli.client import connect

    return _names(lambda: [job.metadata.name for job in connect(start=False).jobs()], incomplete)


def _queue_names(incomplete: str) -> list[str]:
    from muster.cli.client import connect

    return _names(lambda: [row["name"] for row in connect(start=False).queues()], incomplete)


def _phases(incomplete: str) -> list[str]:
    """Phases in the place of the last of `Running,Pe`; those named before it are not offered again."""
    from muster.cli.views.job_words import STYLES

    before, comma, last = incomplete.rpartition(",")
    left = [phase for phase in STYLES if phase not in before.split(",")]
    return [f"{before}{comma}{phase}" for phase in left if phase.startswith(last.capitalize())]


JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="A job: NAME or NAMESPACE/NAME.", autocompletion=_job_names)
]
JobNames = Annotated[
    list[str], typer.Argument(metavar="JOB", help="Jobs: NAME or NAMESPACE/NAME.", autocompletion=_job_names)
]
QueueName = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Queue.", autocompletion=_queue_names)
]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace.", metavar="NAMESPACE")]
Phases = Annotated[
    str | None,
    typer.Option(
        "--phase",
        metavar="PHASE,...",
        help="Pending, Admitted, Running, Suspended, Terminating, Succeeded, Failed or Cancelled; or some.",
        autocompletion=_phases,
    ),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces; on this host they are shown anyway.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def split_name(job: str, namespace: str | None = None) -> tuple[str, str]:
    """(name, namespace) of NAME or NAMESPACE/NAME; `namespace` counts where the name has none, else the usual one."""
    from muster.cli.client import default_namespace

    before, slash, name = job.rpartition("/")
    return (name, before) if slash else (job, namespace or default_namespace())
