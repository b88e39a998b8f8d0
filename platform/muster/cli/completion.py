"""Shell completion of names, and the arguments and options that several commands share.

Completion prints no errors and does not start the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer


def _complete_names(list_names: Callable[[], list[str]], incomplete: str) -> list[str]:
    try:
        return sorted({name for name in list_names() if name.startswith(incomplete)})
    except Exception:
        return []  # an error message would be printed into the user's command line


def _complete_job_names(incomplete: str) -> list[str]:
    from muster.cli.connect import connect

    return _complete_names(lambda: [job.metadata.name for job in connect(start=False).jobs()], incomplete)


def _complete_queue_names(incomplete: str) -> list[str]:
    from muster.cli.connect import connect

    return _complete_names(lambda: [row["name"] for row in connect(start=False).queues()], incomplete)


def _complete_phases(incomplete: str) -> list[str]:
    """Completions of the last phase of a list such as `Running,Pe`, without the phases already in the list."""
    from muster.cli.views.job_text import PHASE_STYLES

    before, comma, last = incomplete.rpartition(",")
    left = [phase for phase in PHASE_STYLES if phase not in before.split(",")]
    return [f"{before}{comma}{phase}" for phase in left if phase.startswith(last.capitalize())]


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job: NAME or NAMESPACE/NAME.", autocompletion=_complete_job_names)
]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB", help="Jobs: NAME or NAMESPACE/NAME.", autocompletion=_complete_job_names)
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="QUEUE", help="Queue.", autocompletion=_complete_queue_names)
]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace.", metavar="NAMESPACE")]
PhaseOption = Annotated[
    str | None,
    typer.Option(
        "--phase",
        metavar="PHASE,...",
        help="Pending, Admitted, Running, Suspended, Terminating, Succeeded, Failed or Cancelled; several with commas.",
        autocompletion=_complete_phases,
    ),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces; on this host the default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def split_job_name(job: str, namespace: str | None = None) -> tuple[str, str]:
    """(name, namespace) of NAME or NAMESPACE/NAME. A name without one is in `namespace`, else the default namespace."""
    from muster.cli.connect import default_namespace

    before, slash, name = job.rpartition("/")
    return (name, before) if slash else (job, namespace or default_namespace())
