"""Which cluster the verbs talk to: this host, unless an option or the environment names one of Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.cli.exit_codes import usage_error

if TYPE_CHECKING:
    from muster.kubernetes.config import KubeContext

CLUSTER_ENV, CONTEXT_ENV = "MUSTER_CLUSTER", "MUSTER_CONTEXT"
LOCAL, KUBERNETES = "local", "kubernetes"
_CLUSTER_OPTIONS = ("--cluster", "--context", "--kubeconfig")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the options say; None where they say nothing."""

    cluster: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


_selected: ContextVar[ClusterOptions | None] = ContextVar("said", default=None)


def select_cluster(options: ClusterOptions) -> None:
    """Remember what the options of this command say. Raises `InvalidSpec` for what cannot be."""
    resolve_context(options, os.environ)
    _selected.set(options)


def selected_context() -> KubeContext | None:
    """The cluster of Kubernetes that is meant, or None for this host."""
    return resolve_context(_selected.get() or ClusterOptions(), os.environ)


def resolve_context(options: ClusterOptions, environ: Mapping[str, str]) -> KubeContext | None:
    """Options count before the environment, and a context or a kubeconfig that is named before a cluster's kind."""
    named = options.context is not None or options.kubeconfig is not None
    option, kind = (
        ("--cluster", options.cluster)
        if options.cluster is not None
        else (CLUSTER_ENV, environ.get(CLUSTER_ENV) or None)
    )
    if kind not in (None, LOCAL, KUBERNETES):
        usage_error(f"{option}: {kind!r} is not known; write {LOCAL} or {KUBERNETES}", option)
    if options.cluster == LOCAL and named:
        usage_error("--cluster local: this host has no context; leave --context and --kubeconfig out", "--cluster")
    context = options.context or environ.get(CONTEXT_ENV) or None
    if not named and (kind == LOCAL or (kind is None and context is None)):
        return None
    from muster.kubernetes.config import KubeContext

    return KubeContext(options.kubeconfig, context)


def hoist_options(arguments: Sequence[str]) -> list[str]:
    """The words of a command with the options of this file before the verb, wherever they were written."""
    front: list[str] = []
    rest = list(arguments)
    place = 0
    while place < len(rest) and rest[place] != "--":
        name, is_joined, _ = rest[place].partition("=")
        length = 1 if is_joined else 2
        if name in _CLUSTER_OPTIONS:
            front += rest[place : place + length]
            del rest[place : place + length]
        else:
            place += 1
    return [*front, *rest]
