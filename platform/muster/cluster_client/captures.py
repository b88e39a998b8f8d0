"""A capture in a cluster: a TraceCapture that the operator carries out."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Generator
from contextlib import closing, suppress

from muster.api.spec import FINISHED_CAPTURE_PHASES, TraceCapture, TraceCaptureSpec
from muster.capture.protocol import HungRank, JobStacks
from muster.errors import ClusterError, MusterError, NotFound, Refused
from muster.kube.convert import read_object
from muster.kube.requests import STRICT_FIELD_VALIDATION
from muster.kube.resources import TRACE_CAPTURES
from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S, KubeClient

NO_OPERATOR_AFTER_S = 30.0
_POLL_S = 0.5


def run_capture(kube_client: KubeClient, spec: TraceCaptureSpec, namespace: str) -> Generator[TraceCapture, None, None]:
    """Create a TraceCapture; yields it after each change, until it is finished. Closing the iterator deletes it.

    Raises `ClusterError` NoOperator if no operator takes it up, `NotFound` if it is deleted meanwhile.
    """
    name = f"{spec.job}-{secrets.token_hex(4)}"
    document = {
        "apiVersion": TRACE_CAPTURES.api_version,
        "kind": TRACE_CAPTURES.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.model_dump(mode="json", by_alias=True),
    }
    collection, path = TRACE_CAPTURES.path(namespace), TRACE_CAPTURES.path(namespace, name)
    created = read_object(
        TraceCapture, kube_client.request("POST", collection, document, query=STRICT_FIELD_VALIDATION)
    )
    began = answered = time.monotonic()
    last = None
    try:
        while last is None or last.status.phase not in FINISHED_CAPTURE_PHASES:
            time.sleep(_POLL_S)
            try:
                found = read_object(TraceCapture, kube_client.get(path))
                answered = time.monotonic()
            except NotFound:
                raise
            except ClusterError:
                if time.monotonic() > answered + UNREACHABLE_TIMEOUT_S:
                    raise
                continue
            if found.metadata.uid != created.metadata.uid:
                raise NotFound(f"tracecapture {namespace}/{name} was deleted")
            if not found.status.observed_generation and time.monotonic() > began + NO_OPERATOR_AFTER_S:
                message = f"no operator has taken up the capture within {NO_OPERATOR_AFTER_S:g} s"
                raise ClusterError(f"{message}; check that the operator is running", reason="NoOperator")
            if found.status.observed_generation and found != last:
                last = found
                yield found
    finally:
        if last is None or last.status.phase not in FINISHED_CAPTURE_PHASES:
            with suppress(MusterError):
                kube_client.request("DELETE", path)


def read_stacks(captures: Generator[TraceCapture, None, None]) -> JobStacks:
    """The stacks of the ranks, once the capture is finished. Raises `Refused` if it failed without an answer."""
    with closing(captures):
        status = deque(captures, maxlen=1).pop().status
    if not status.ranks:
        raise Refused(status.message, reason=status.reason)
    ranks = tuple(HungRank(one.rank, tuple(one.frames), one.reason, one.file) for one in status.ranks)
    return JobStacks(status.message, ranks)
