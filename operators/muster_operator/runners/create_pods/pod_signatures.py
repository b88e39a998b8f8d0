"""The signature that the operator gives each pod: its job, its queue, its node, and the request that it was admitted
with.

It tells a pod of a deleted job from one that a user made up: such a pod is charged to its queue and deleted, although
no object is left that says so. Of a job that exists and is not admitted, only pods with a signature are charged. Any
user who may create pods can write any owner, label and annotation, but cannot sign them. It is valid for one name in
one namespace on one node, and only if the pod was created when it was signed, so that a copy of a pod that existed
earlier is not taken for it. A copy that a user makes within these minutes is charged no more than the pod was admitted
with. A pod that a controller of another kind has created is signed when it is released, with its uid instead of a time.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.api.spec import JOB_LABEL
from muster.kinds.trainingjob.arrays import ARRAY_INDEX_LABEL, index_key
from muster.model import Resources
from muster_operator.cache.cached_pod import CachedPod
from muster_operator.pod_builder.job_objects import (
    JOB_UID_LABEL,
    QUEUE_ANNOTATION,
    SIGNATURE_ANNOTATION,
)
from muster_operator.shared_key import SharedKey

MAX_CLOCK_SKEW_S = 300.0
"""Most seconds between the signature and the pod's creation, by the clocks of the operator and the API server."""
_requests = msgspec.json.Decoder(dict[str, int])


@dataclass(slots=True)
class PodSigner:
    """Signs pods with the operator's key, and verifies signatures. `key` must be loaded to sign; until then no
    signature is valid."""

    key: SharedKey
    clock: Callable[[], float] = time.time

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self.key.clear()

    @property
    def generation(self) -> object:
        """Differs where the results for pods may; None: there are none."""
        return self.key.loaded

    def sign(self, manifest: dict[str, Any], node: str, request: Resources) -> None:
        """Add the signature to the manifest of a pod that is about to be created, pinned to `node` and admitted with
        `request`."""
        meta = manifest["metadata"]
        labels, annotations = meta["labels"], meta["annotations"]
        name, uid, index = labels[JOB_LABEL], labels[JOB_UID_LABEL], labels.get(ARRAY_INDEX_LABEL)
        if index is not None:
            name, uid = f"{name}-{index}", index_key(uid, int(index))
        of_job = name, uid, annotations[QUEUE_ANNOTATION]
        at = str(round(self.clock()))
        annotations[SIGNATURE_ANNOTATION] = self._signature(at, request, node, meta["namespace"], meta["name"], *of_job)

    def released(self, pod: CachedPod, node: str) -> str:
        """The signature of a gated pod that is about to be released to `node`."""
        assert pod.job is not None
        assert pod.view is not None
        of_job = pod.job.name, pod.job.uid, pod.queue
        return self._signature(pod.uid, pod.view.request, node, pod.namespace, pod.name, *of_job)

    def _signature(self, at: str, request: Resources, *others: str) -> str:
        assert self.key.loaded is not None, "the key is not loaded"
        requested = msgspec.json.encode(dict(request)).decode()
        return f"{at}.{_digest(self.key.loaded, _signed_text(at, requested, *others))}.{requested}"

    def charged_request(self, pod: CachedPod) -> Resources | None:
        """What a queue is charged for a pod of `pod.job`: its request, of each resource at most what it was admitted
        with; nothing if no operator with this key created or released it. None while there is no key."""
        if self.key.loaded is None or pod.view is None or pod.job is None:
            return None
        at, _, rest = pod.signature.partition(".")
        digest, _, requested = rest.partition(".")
        if at != pod.uid and not _is_at(at, pod.created_at):
            return Resources()
        text = _signed_text(at, requested, pod.view.node, pod.namespace, pod.name, pod.job.name, pod.job.uid, pod.queue)
        if not hmac.compare_digest(digest.encode(errors="replace"), _digest(self.key.loaded, text).encode()):
            return Resources()
        admitted, request = _requests.decode(requested), pod.view.request
        charged = Resources.of({name: min(amount, request.get(name)) for name, amount in admitted.items()})
        return request if charged == request else charged


def _is_at(text: str, created_at: float) -> bool:
    """Whether it is the time at which the pod was created."""
    return text.isascii() and text.isdigit() and len(text) < 16 and abs(created_at - int(text)) <= MAX_CLOCK_SKEW_S


def _signed_text(*values: str) -> str:
    return json.dumps(["muster-pod", *values])


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()
