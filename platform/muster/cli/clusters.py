"""Which cluster the verbs talk to: this host, unless an option or the environment names one of Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.cli.outcome import usage_error

if TYPE_CHECKING:
    from muster.kubernetes.access import Target

CLUSTER, CONTEXT = "MUSTER_CLUSTER", "MUSTER_CONTEXT"
LOCAL, KUBERNETES = "local", "kubernetes"
_OPTIONS = ("--cluster", "--context", "--kubeconfig")


@dataclass(frozen=True, slots=True)
class Choice:
    """What the options say; None where they say nothing."""

    cluster: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


_said: ContextVar[Choice | None] = ContextVar("said", default=None)


def say(choice: Choice) -> None:
    """Remember what the options of this command say. Raises `InvalidSpec` for what cannot be."""
    target(choice, os.environ)
    _said.set(choice)


def chosen() -> Target | None:
    """The cluster of Kubernetes that is meant, or None for this host."""
    return target(_said.get() or Choice(), os.environ)


def target(choice: Choice, environ: Mapping[str, str]) -> Target | None:
    """Options count before the environment, and a context or a kubeconfig that is named before a cluster's kind."""
    named = choice.context is not None or choice.kubeconfig is not None
    option, kind = (
        ("--cluster", choice.cluster) if choice.cluster is not None else (CLUSTER, environ.get(CLUSTER) or None)
    )
    if kind not in (None, LOCAL, KUBERNETES):
        usage_error(f"{option}: {kind!r} is not known; write {LOCAL} or {KUBERNETES}", option)
    if choice.cluster == LOCAL and named:
        usage_error("--cluster local: this host has no context; leave --context and --kubeconfig out", "--cluster")
    context = choice.context or environ.get(CONTEXT) or None
    if not named and (kind == LOCAL or (kind is None and context is None)):
        return None
    from muster.kubernetes.access import Target

    return Target(choice.kubeconfig, context)


def in_front(words: Sequence[str]) -> list[str]:
    """The words of a command with the options of this file before the verb, wherever they were written."""
    front: list[str] = []
    rest = list(words)
    place = 0
    while place < len(rest) and rest[place] != "--":
        name, is_joined, _ = rest[place].partition("=")
        length = 1 if is_joined else 2
        if name in _OPTIONS:
            front += rest[place : place + length]
            del rest[place : place + length]
        else:
            place += 1
    return [*front, *rest]
