"""Termination messages of collectors, from the container statuses of their pods (`muster.tracing.collector`).

They come from a program in a user's pod, so only valid numbers are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.heartbeats.parse import finite_number
from muster.kube.objects import V1ContainerStatus
from muster_operator.pod_builder.collector import COLLECTOR_NAME as COLLECTOR

MAX_TRACES = 1_000_000
_MAX_LENGTH = 4096  # characters: the limit of Kubernetes


@dataclass(frozen=True, slots=True)
class TerminationMessage:
    """Termination message of a collector: traces collected, and the newest checkpoint in the run folder."""

    traces: int
    checkpoint: tuple[float, float] | None  # step, and time by the pod's clock


class _Message(msgspec.Struct):
    traces: Any = 0
    checkpoint: Any = None


def parse_termination_message(containers: Iterable[V1ContainerStatus]) -> TerminationMessage | None:
    """The message among a pod's sidecars; None where the collector has not ended or the message is not ours."""
    for one in containers:
        end = one.state.terminated
        if one.name == COLLECTOR and end is not None and len(end.message) <= _MAX_LENGTH:
            try:
                return _validated(msgspec.json.decode(end.message, type=_Message))
            except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
                return None  # empty, or the tail of its log
    return None


def _validated(message: _Message) -> TerminationMessage:
    traces = finite_number(message.traces)
    checkpoint = message.checkpoint if isinstance(message.checkpoint, Mapping) else {}
    step, at = finite_number(checkpoint.get("step")), finite_number(checkpoint.get("at"))
    return TerminationMessage(
        traces=int(traces) if traces is not None and 0 <= traces <= MAX_TRACES else 0,
        checkpoint=None if step is None or at is None else (step, at),
    )
