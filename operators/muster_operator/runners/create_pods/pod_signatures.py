"""The signature that the operator gives each pod: its job, its queue, its node, and the request that it was admitted
with.

It tells a pod of a deleted job from one that a user made up: such a pod is charged to its queue and deleted, although
no object is left that says so. Any user who may create pods can write any owner, label and annotation, but cannot sign
them. It is valid for one name in one namespace on one node, and only if the pod was created when it was signed, so
that a copy of a pod that existed earlier is not taken for it. A copy that a user makes within these minutes is charged
no more than the pod was admitted with.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.api.spec import JOB_LABEL
from muster.model import Resources
from muster_operator.cache.cached_pod import CachedPod
from muster_operator.pod_builder.job_objects import JOB_UID_LABEL, QUEUE_ANNOTATION, SIGNATURE_ANNOTATION
from muster_operator.shared_key import SharedKey

MAX_CLOCK_SKEW_S = 300.0
"""Most seconds between the signature and the pod's creation, by the clocks of the operator and the API server."""
_MAX_ENTRIES = 50_000
_requests = msgspec.json.Decoder(dict[str, int])


@dataclass(slots=True)
class PodSigner:
    """Signs pods with the operator's key, and verifies signatures. `key` must be loaded to sign; until then no
    signature is valid."""

    key: SharedKey
    clock: Callable[[], float] = time.time
    # the request by the digest of what is signed, with the signature; None: it is not ours
    _verified: dict[bytes, Resources | None] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self.key.clear()
        self._verified.clear()

    def sign(self, manifest: dict[str, Any], node: str, request: Resources) -> None:
        """Add the signature to the manifest of a pod that is about to be created, pinned to `node` and admitted with
        `request`."""
        assert self.key.loaded is not None, "the key is not loaded"
        meta = manifest["metadata"]
        labels, annotations = meta["labels"], meta["annotations"]
        at = str(round(self.clock()))
        requested = msgspec.json.encode(dict(request)).decode()
        text = _signed_text(
            at,
            requested,
            node,
            meta["namespace"],
            meta["name"],
            labels[JOB_LABEL],
            labels[JOB_UID_LABEL],
            annotations[QUEUE_ANNOTATION],
        )
        annotations[SIGNATURE_ANNOTATION] = f"{at}.{_digest(self.key.loaded, text)}.{requested}"

    def charged_request(self, pod: CachedPod) -> Resources | None:
        """What `pod.queue` is charged for a pod of `pod.job`: its request, of each resource at most what it was
        admitted with. None if no operator with this key created it."""
        at, _, rest = pod.signature.partition(".")
        digest, _, requested = rest.partition(".")
        if self.key.loaded is None or pod.view is None or pod.job is None:
            return None
        if not (at.isascii() and at.isdigit() and len(at) < 16) or abs(pod.created_at - int(at)) > MAX_CLOCK_SKEW_S:
            return None
        text = _signed_text(at, requested, pod.view.node, pod.namespace, pod.name, pod.job.name, pod.job.uid, pod.queue)
        known = hashlib.sha256((text + digest).encode(errors="surrogatepass")).digest()
        if known not in self._verified:
            if len(self._verified) >= _MAX_ENTRIES:
                self._verified.clear()  # costs only computing them again
            genuine = hmac.compare_digest(digest.encode(errors="replace"), _digest(self.key.loaded, text).encode())
            self._verified[known] = Resources.of(_requests.decode(requested)) if genuine else None
        admitted = self._verified[known]
        if admitted is None:
            return None
        return Resources.of({name: min(amount, pod.view.request.get(name)) for name, amount in admitted})


def _signed_text(*values: str) -> str:
    return json.dumps(["muster-pod", *values])


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()
