"""The command `muster`: all commands, their order in the help, and the global options."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

from muster.cli.options import (
    CLUSTER_ENV,
    COMPLETE_ENV,
    CONTEXT_ENV,
    CONTEXT_SETTINGS,
    FILE,
    ClusterOptions,
    SectionedGroup,
    hoist_options,
    install_completion,
    refuse_empty_values,
    select_cluster,
    show_completion,
    show_version,
)
from muster.cli.output import CommandExit, ExitCode, print_error, run_command

_EAGER_FLAG: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}


class _RootGroup(SectionedGroup):
    """Accepts the cluster options after the command as well, also when the shell completes a command line. Imports only
    the module of the command that is called: each start of `muster` waits for its imports."""

    def __init__(self, name: str, **settings: object) -> None:
        super().__init__(name, **settings)
        self._titles: dict[str, tuple[str, ...]] = {}
        self._paths: dict[str, str] = {}

    def add_lazy_section(self, title: str, paths: Mapping[str, str]) -> None:
        """Add commands under a title: `module:function` of `muster.cli` by name."""
        self._titles[title] = tuple(paths)
        self._paths |= paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, which is imported at its first use."""
        if cmd_name in self._paths and cmd_name not in self.commands:
            module, _, name = self._paths[cmd_name].partition(":")
            command: click.Command = getattr(importlib.import_module(f"muster.cli.{module}"), name)
            refuse_empty_values(command)
            self.add_command(command, cmd_name)
        elif cmd_name not in self.commands and not ctx.resilient_parsing:
            self.load_all(ctx)  # click suggests the nearest of the commands that it has
        return super().get_command(ctx, cmd_name)

    def load_all(self, ctx: click.Context) -> None:
        """Import all commands, and sort them into their sections."""
        for title, names in self._titles.items():
            found = (self.get_command(ctx, name) for name in names)
            self.add_section(title, *(command for command in found if command is not None))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.load_all(ctx)
        super().format_options(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the global options."""
        return super().parse_args(ctx, hoist_options(args))


@click.group(cls=_RootGroup, context_settings=CONTEXT_SETTINGS)
@click.option("--version", **_EAGER_FLAG, callback=show_version, help="Print the version and exit.")
@click.option(
    "--cluster",
    metavar="local|kubernetes",
    help=f"This host, or the kubeconfig's cluster; default: {CLUSTER_ENV}.",
)
@click.option("--context", metavar="NAME", help=f"The kubeconfig context to use; default: {CONTEXT_ENV}.")
@click.option("--kubeconfig", type=FILE, metavar="FILE", help="The kubeconfig file to use instead of KUBECONFIG.")
@click.option(
    "--install-completion", **_EAGER_FLAG, callback=install_completion, help="Install completion for your SHELL."
)
@click.option(
    "--show-completion", **_EAGER_FLAG, callback=show_completion, help="Print the completion script for your SHELL."
)
def cli(cluster: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Launch, queue and watch PyTorch training, on this host or in a Kubernetes cluster.

    --json prints JSON with the field names of the YAML. Exit codes: 0 success, 1 the job failed,
    2 invalid input, 3 refused or not found, 4 the cluster cannot be reached, 5 a benchmark became slower,
    130 interrupted.
    """
    select_cluster(ClusterOptions(cluster, context, kubeconfig))


cli.add_lazy_section(
    "Jobs",
    {
        "run": "run:run",
        "submit": "objects:submit",
        "watch": "watch:watch",
        "jobs": "job_list:list_jobs",
        "describe": "jobs:describe",
        "diff": "diff:diff_jobs",
        "logs": "logs:logs",
        "exec": "pod_access:exec_command",
        "port-forward": "pod_access:port_forward",
        "scale": "jobs:scale",
        "cancel": "jobs:cancel",
        "suspend": "jobs:suspend",
        "resume": "jobs:resume",
        "retry": "jobs:retry",
    },
)
cli.add_lazy_section(
    "Queues and nodes",
    {
        "apply": "objects:apply",
        "delete": "objects:delete",
        "queues": "cluster:queues",
        "nodes": "cluster:nodes",
        "usage": "usage:usage",
        "drain": "cluster:drain",
        "undrain": "cluster:undrain",
        "release": "release:release",
        "dashboard": "dashboard:dashboard",
    },
)
cli.add_lazy_section(
    "Analysis", {"trace": "trace:trace", "report": "analysis:report", "memory": "memory:memory", "bench": "bench:bench"}
)
cli.add_lazy_section("Models", {"export": "export:export"})
cli.add_lazy_section("Simulation", {"simulate": "analysis:simulate", "replay": "analysis:replay"})
cli.add_lazy_section("This host", {"local": "cluster:local"})
refuse_empty_values(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `muster` script; ends the process with one of `ExitCode`."""
    if COMPLETE_ENV in os.environ:
        sys.exit(shell_complete(cli, {}, "muster", COMPLETE_ENV, os.environ[COMPLETE_ENV]))
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words  # what follows are a program's arguments
    as_json = "--json" in own
    sys.exit(run_command(lambda: _invoke(words, as_json), as_json=as_json))


def _invoke(words: list[str], as_json: bool) -> None:
    try:
        with cli.make_context("muster", words) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:  # of --help and --version
        if end.exit_code:
            raise CommandExit(ExitCode(end.exit_code)) from None
    except click.UsageError as error:
        if as_json:
            print_error(error.format_message(), "Usage", _usage_error_field(error), as_json=True)
        else:
            error.show()
        raise CommandExit(ExitCode.INVALID) from None


def _usage_error_field(error: click.UsageError) -> str:
    """The option or argument that a usage error concerns, such as `--priority`; empty if unknown."""
    if isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        return error.option_name
    names = error.param.opts if isinstance(error, click.BadParameter) and error.param is not None else [""]
    return max(names, key=len)
