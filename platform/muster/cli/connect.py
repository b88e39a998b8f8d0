"""The cluster that a command uses, and its client.

This host, unless an option or the environment names a Kubernetes cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from muster.cli.output import usage_error
from muster.client import ClusterClient

if TYPE_CHECKING:
    from muster.cluster_client.client import KubernetesClusterClient
    from muster.kube.config import KubeContext

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
    target = selected_context()
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
