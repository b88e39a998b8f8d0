"""The signature that the operator gives each pod: which job it belongs to, and which queue it was admitted to.

It tells a pod of a deleted job from one that a user made up: such a pod is charged to its queue and deleted, although
no object is left that says so. Any user who may create pods can write any owner, label and annotation, but cannot sign
them. It is valid for one name in one namespace, and only if the pod was created when it was signed, so that a copy of
a pod that existed earlier is not taken for it.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from muster.api.spec import JOB_LABEL
from muster_operator.cache.cached_pod import CachedPod
from muster_operator.pod_builder.job_objects import JOB_UID_LABEL, QUEUE_ANNOTATION, SIGNATURE_ANNOTATION
from muster_operator.shared_key import SharedKey

MAX_CLOCK_SKEW_S = 300.0
"""Most seconds between the signature and the pod's creation, by the clocks of the operator and the API server."""
_MAX_ENTRIES = 50_000


@dataclass(slots=True)
class PodSigner:
    """Signs pods with the operator's key, and verifies signatures. `key` must be loaded to sign; until then no
    signature is valid."""

    key: SharedKey
    clock: Callable[[], float] = time.time
    _verified: dict[str, bool] = field(default_factory=dict)  # by what is signed, with the signature

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self.key.clear()
        self._verified.clear()

    def sign(self, manifest: dict[str, Any]) -> None:
        """Add the signature to the manifest of a pod that is about to be created."""
        assert self.key.loaded is not None, "the key is not loaded"
        meta = manifest["metadata"]
        labels, annotations = meta["labels"], meta["annotations"]
        at = round(self.clock())
        text = _signed_text(
            at,
            meta["namespace"],
            meta["name"],
            labels[JOB_LABEL],
            labels[JOB_UID_LABEL],
            annotations[QUEUE_ANNOTATION],
        )
        annotations[SIGNATURE_ANNOTATION] = f"{at}.{_digest(self.key.loaded, text)}"

    def is_genuine(self, pod: CachedPod) -> bool:
        """Whether an operator with this key created the pod, for `pod.job` and `pod.queue`."""
        at, _, digest = pod.signature.partition(".")
        if self.key.loaded is None or pod.job is None or not (at.isascii() and at.isdigit() and len(at) < 16):
            return False
        if abs(pod.created_at - int(at)) > MAX_CLOCK_SKEW_S:
            return False
        text = _signed_text(int(at), pod.namespace, pod.name, pod.job.name, pod.job.uid, pod.queue)
        known = self._verified.get(text + digest)
        if known is None:
            if len(self._verified) >= _MAX_ENTRIES:
                self._verified.clear()  # costs only computing them again
            known = hmac.compare_digest(digest.encode(), _digest(self.key.loaded, text).encode())
            self._verified[text + digest] = known
        return known


def _signed_text(at: int, *names: str) -> str:
    return json.dumps(["muster-pod", at, *names])


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()
