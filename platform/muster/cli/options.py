"""What the commands share: the cluster that they use and its client, common arguments and options, the layout of group
help, and shell completion.

The cluster is this host, unless an option or the environment names a Kubernetes cluster. Completion prints no errors
and does not start the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from muster.cli.output import usage_error
from muster.client import ClusterClient

if TYPE_CHECKING:
    from muster.cluster_client.client import KubernetesClusterClient
    from muster.kube.config import KubeContext

_MAX_WIDTH = 110  # columns
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH}
COMPLETE_ENV = "_MUSTER_COMPLETE"
_ZSH_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }; "
_STARTUP_LINES = {
    "bash": (".bashrc", f'eval "$({COMPLETE_ENV}=bash_source muster)"'),
    "zsh": (".zshrc", f'{_ZSH_COMPINIT}eval "$({COMPLETE_ENV}=zsh_source muster)"'),
    "fish": (".config/fish/completions/muster.fish", f"{COMPLETE_ENV}=fish_source muster | source"),
}
"""By shell: a file in the home folder that it reads, and the line that loads the completion."""
_Callback = TypeVar("_Callback", bound=Callable[..., object])
FILE = click.Path(readable=False)


class _PathType(click.Path):
    """A path that is not empty: `Path("")` would be the current folder."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail(_EMPTY, param, ctx)
        return super().convert(value, param, ctx)


_EMPTY = "must not be empty"
PATH = _PathType(readable=False, path_type=Path)


def refuse_empty_values(command: click.Command) -> None:
    """Make all arguments and options of the command, and of those below it, refuse an empty text: mostly a variable of
    the shell that is not set. Taken as a name it would find nothing, or, as a path or namespace, something else."""
    for param in command.params:
        if param.callback is None:
            param.callback = _refuse_empty
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        refuse_empty_values(below)


def _refuse_empty(ctx: click.Context, param: click.Parameter, value: object) -> object:
    if ctx.get_parameter_source(param.name or "") in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        return value
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise click.BadParameter(_EMPTY, ctx, param)
    return value


class _WebAddress(click.ParamType[str]):
    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
            valid = valid and (parts.port is None or parts.port > 0)
        except ValueError:
            valid = False
        if not valid:
            self.fail(f"must be an address such as https://ui.perfetto.dev; got {value!r}", param, ctx)
        return value


WEB_ADDRESS = _WebAddress()
CLUSTER_ENV, CONTEXT_ENV = "MUSTER_CLUSTER", "MUSTER_CONTEXT"
LOCAL, KUBERNETES = "local", "kubernetes"
_CLUSTER_OPTIONS = ("--cluster", "--context", "--kubeconfig")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Values of the cluster options; None if not given."""

    cluster: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


_selected: ContextVar[ClusterOptions | None] = ContextVar("cluster_options", default=None)


def select_cluster(options: ClusterOptions) -> None:
    """Set the cluster options of this command. Raises `InvalidSpec` if they are invalid or contradict each other."""
    resolve_context(options, os.environ)
    _selected.set(options)


def selected_context() -> KubeContext | None:
    """The selected Kubernetes context, or None for this host."""
    return resolve_context(_selected.get() or ClusterOptions(), os.environ)


def resolve_context(options: ClusterOptions, environ: Mapping[str, str]) -> KubeContext | None:
    """Options override the environment; a given context or kubeconfig overrides the kind of cluster."""
    named = options.context is not None or options.kubeconfig is not None
    option, kind = (
        ("--cluster", options.cluster)
        if options.cluster is not None
        else (CLUSTER_ENV, environ.get(CLUSTER_ENV) or None)
    )
    if kind not in (None, LOCAL, KUBERNETES):
        usage_error(f"{option}: must be {LOCAL} or {KUBERNETES}; got {kind!r}", option)
    if options.cluster == LOCAL and named:
        usage_error("--cluster: local cannot be combined with --context or --kubeconfig", "--cluster")
    context = options.context or environ.get(CONTEXT_ENV) or None
    if not named and (kind == LOCAL or (kind is None and context is None)):
        return None
    from muster.kube.config import KubeContext

    return KubeContext(options.kubeconfig, context)


def hoist_options(arguments: Sequence[str]) -> list[str]:
    """The arguments with the cluster options moved before the command name, where click accepts global options.

    An option whose value is missing comes last, without the command: click reports it, or completes its value.
    """
    options: list[str] = []
    rest = list(arguments)
    index = 0
    while index < len(rest) and rest[index] != "--":
        name, is_joined, _ = rest[index].partition("=")
        length = 1 if is_joined else 2
        if name in _CLUSTER_OPTIONS:
            if index + length > len(rest):
                return [*options, name]
            options += rest[index : index + length]
            del rest[index : index + length]
        else:
            index += 1
    return [*options, *rest]


def connect(start: bool = True) -> ClusterClient:
    """A client of the selected cluster. For this host, the daemon is started unless `start` is False."""
    return client_of(selected_context(), start)


def client_of(target: KubeContext | None, start: bool = True) -> ClusterClient:
    """A client of a cluster; None: of this host, whose daemon is started unless `start` is False."""
    return _connect_local(start) if target is None else _kubernetes_client(target)


def default_namespace() -> str:
    """The namespace of a job that is named without one."""
    target = selected_context()
    return "default" if target is None else _kubernetes_client(target).namespace


def default_list_namespace() -> str | None:
    """The namespace that lists show by default: on this host all (None), in a cluster that of the context."""
    target = selected_context()
    return None if target is None else _kubernetes_client(target).namespace


@cache
def _kubernetes_client(context: KubeContext) -> KubernetesClusterClient:
    from muster.cluster_client.client import KubernetesClusterClient

    return KubernetesClusterClient.connect(context)


def _local_client(start: bool) -> ClusterClient:
    from muster.local.client import LocalClient

    return LocalClient.connect(start=start)


_connect_local: Callable[[bool], ClusterClient] = _local_client  # tests patch this with an in-memory cluster


class SectionedGroup(click.Group):
    """A group of commands. Its help lists them by section, in the order they were added, and then the options."""

    def __init__(self, name: str, **settings: object) -> None:
        super().__init__(name, subcommand_metavar="VERB ...", no_args_is_help=True, **settings)  # type: ignore[arg-type]
        self._sections: dict[str, list[click.Command]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands under a title."""
        self._sections[title] = list(commands)
        for command in commands:
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands in the order of the help."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands first, then the options."""
        for title, commands in self._sections.items():
            with formatter.section(title):
                rows = [(command.name or "", command.get_short_help_str(limit=1000)) for command in commands]
                formatter.write_dl(rows, col_max=12)
        click.Command.format_options(self, ctx, formatter)


class PlainOption(click.Option):
    """An option whose help is its sentence only, without the bounds and [required] that click appends."""

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        return {}


def _complete_names(
    ctx: click.Context, list_names: Callable[[ClusterClient], Iterable[str]], incomplete: str
) -> list[str]:
    """Completions from the cluster of the options that precede the word; click calls no command that selects it."""
    given = ctx.find_root().params
    try:
        select_cluster(ClusterOptions(given.get("cluster"), given.get("context"), given.get("kubeconfig")))
        names = list_names(connect(start=False))
        return sorted({name for name in names if name.startswith(incomplete)})
    except Exception:
        return []  # an error message would be printed into the user's command line


def complete_job_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of jobs in the namespace of the command line, else of the namespace that lists show."""

    def names(client: ClusterClient) -> Iterable[str]:
        jobs = client.jobs(ctx.params.get("namespace") or default_list_namespace())
        return [job.metadata.name for job in jobs]

    return _complete_names(ctx, names, incomplete)


def _complete_queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _complete_names(ctx, lambda client: [row["name"] for row in client.queues()], incomplete)


def complete_phases(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completions of the last phase of a list such as `Running,Pe`, without the phases already in the list."""
    from muster.cli.views.job_text import PHASE_STYLES

    before, comma, last = incomplete.rpartition(",")
    left = [phase for phase in PHASE_STYLES if phase not in before.split(",")]
    return [f"{before}{comma}{phase}" for phase in left if phase.startswith(last.capitalize())]


job_argument = click.argument(
    "job", metavar="JOB", help="A job: NAME or NAMESPACE/NAME.", shell_complete=complete_job_names
)


def runs_argument(files: str) -> Callable[[_Callback], _Callback]:
    """The argument of a command that reads `files` of runs, such as traces."""
    return click.argument(
        "runs",
        type=FILE,
        nargs=-1,
        required=True,
        metavar="RUN|JOB|FILE...",
        help=f"A job, a run folder, any folder of {files}, or some {files}.",
    )


queue_option = click.option("--queue", "-q", metavar="QUEUE", help="Queue.", shell_complete=_complete_queue_names)
namespace_option = click.option("--namespace", "-n", metavar="NAMESPACE", help="Namespace.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def split_job_name(job: str, namespace: str | None = None) -> tuple[str, str]:
    """(name, namespace) of NAME or NAMESPACE/NAME. A name without one is in `namespace`, else the default namespace.
    Raises `InvalidSpec` Usage if a part is empty."""
    before, slash, name = job.rpartition("/")
    if not name or (slash and not before):
        usage_error(f"job: must be NAME or NAMESPACE/NAME; got {job!r}", "job")
    return (name, before) if slash else (job, namespace or default_namespace())


def show_completion(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """The option --show-completion."""
    if is_given and not ctx.resilient_parsing:
        completion = get_completion_class(_current_shell())
        assert completion is not None
        click.echo(completion(ctx.command, {}, "muster", COMPLETE_ENV).source())
        ctx.exit()


def show_version(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """The option --version."""
    if is_given and not ctx.resilient_parsing:
        from muster.version import version

        click.echo(f"muster {version()}")
        ctx.exit()


def install_completion(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """The option --install-completion: adds a line to the shell's startup file, once."""
    if is_given and not ctx.resilient_parsing:
        shell = _current_shell()
        name, line = _STARTUP_LINES[shell]
        file = Path.home() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or line not in file.read_text():
            with file.open("a") as stream:
                stream.write(f"\n{line}\n")
        click.echo(f"{shell} completion is installed in {file}; it takes effect in new shells")
        ctx.exit()


def _current_shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in _STARTUP_LINES:
        usage_error(f"SHELL: must be the path of {', '.join(_STARTUP_LINES)}; got {os.environ.get('SHELL')!r}", "SHELL")
    return shell
