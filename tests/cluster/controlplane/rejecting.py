"""A kubelet that rejects every pod, as one without healthy devices does: KWOK leaves its node alone, and this writes
what a kubelet writes."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from tests.cluster.controlplane.api import Api, Refused

REASON = "UnexpectedAdmissionError"
MESSAGE = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"


class RejectingKubelets:
    """The kubelets of these nodes, which need the label `nodes.KUBELET`: they reject pods while this is entered, or at
    each `reject_pending`."""

    def __init__(self, api: Api, *names: str, reason: str = REASON, message: str = MESSAGE) -> None:
        self._api = api
        self._names = names
        self._status = {"phase": "Failed", "reason": reason, "message": message}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rejected: list[tuple[str, str]] = []  # node and job of each rejected pod

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def reject_pending(self) -> None:
        """Reject the pods that are bound to these nodes now."""
        for name in self._names:
            for pod in self._api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name},status.phase=Pending"):
                self._reject(name, pod)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.reject_pending()

    def _reject(self, node: str, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        try:
            if "deletionTimestamp" in meta:
                self._api.delete(path, gracePeriodSeconds=0)
            else:
                self._api.patch(f"{path}/status", {"status": self._status})
                self.rejected.append((node, (meta.get("labels") or {}).get("muster.dev/job", "")))
        except Refused as refused:
            if refused.code != 404:  # it has just gone
                raise
