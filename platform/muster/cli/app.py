"""The Typer application: all commands, their order in the help, and the global options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from muster.cli import daemon, drain, jobs, logs, objects, queues, reports, scale, simulate, watch
from muster.cli.cluster_options import CLUSTER_ENV, CONTEXT_ENV, ClusterOptions, hoist_options, select_cluster
from muster.cli.exit_codes import CommandExit, ExitCode, print_error, run_command
from muster.cli.help import CONTEXT_SETTINGS, HelpGroup, HelpTyper

_HELP_SECTIONS = {
    "Jobs": ("submit", "watch", "jobs", "describe", "logs", "scale", "cancel", "suspend", "resume"),
    "Queues and nodes": ("apply", "delete", "queues", "nodes", "drain", "undrain"),
    "Analysis": ("report",),
    "Simulation": ("simulate", "replay"),
    "This host": ("local",),
}


class SectionedHelpGroup(HelpGroup):
    """The commands, grouped by subject."""

    sections = _HELP_SECTIONS


app = HelpTyper(
    name="muster",
    cls=SectionedHelpGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich's help costs 0.2 s
    pretty_exceptions_enable=False,
    context_settings=CONTEXT_SETTINGS,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"muster {version('muster')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="local|kubernetes", help=f"This host, or the kubeconfig's cluster; default: {CLUSTER_ENV}."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"The kubeconfig context to use; default: {CONTEXT_ENV}."),
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="The kubeconfig file to use instead of KUBECONFIG.")
    ] = None,
) -> None:
    """Launch, queue and watch PyTorch training, on this host or in a Kubernetes cluster.

    --json prints JSON with the field names of the YAML. Exit codes: 0 success, 1 the job failed,
    2 invalid input, 3 refused or not found, 4 the cluster cannot be reached, 130 interrupted.
    """
    select_cluster(ClusterOptions(cluster, context, kubeconfig))


for _module in (jobs, scale, logs, watch, objects, queues, drain, reports, simulate):
    _module.register(app)
app.add_typer(daemon.app, name="local")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `muster` script; ends the process with one of `ExitCode`."""
    words = hoist_options(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    sys.exit(run_command(lambda: _invoke(words, as_json), as_json=as_json))


def _invoke(words: list[str], as_json: bool) -> None:
    command = typer.main.get_command(app)
    try:
        code = command.main(args=words, prog_name="muster", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer turns a closed stdout into SystemExit
            raise end.__context__ from None
        raise
    except Exception as error:
        if not _is_usage_error(error):
            raise
        if as_json:
            print_error(error.format_message(), "Usage", _usage_error_field(error), as_json=True)  # type: ignore[attr-defined]
        else:
            error.show()  # type: ignore[attr-defined]
        raise CommandExit(ExitCode.INVALID) from None
    if isinstance(code, int) and code:
        raise CommandExit(ExitCode(code))


def _usage_error_field(error: Exception) -> str:
    """The option or argument that a usage error concerns, such as `--priority`; empty if unknown."""
    if (name := getattr(error, "option_name", None)) is not None:  # an unknown option
        return str(name)
    names = getattr(getattr(error, "param", None), "opts", None) or [""]
    return str(max(names, key=len))


def _is_usage_error(error: Exception) -> bool:
    """Typer vendors click, so that its errors can only be recognized by their attributes."""
    return hasattr(error, "format_message") and hasattr(error, "show") and hasattr(error, "exit_code")
