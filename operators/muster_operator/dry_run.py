"""Dry runs: what the pods of a template really request, as the API server would create them.

Defaults, admission plugins and webhooks add resources, overhead and sidecars, or reject the pod. So each template of a
namespace has a server-side dry run before its job becomes visible to the engine. Rejections are retried, since a
missing service account or a quota may be fixed at any time; so are lasting failures, such as of an unreachable webhook:
the job waits with that reason. Results that pending jobs depend on are refreshed, because LimitRanges, RuntimeClasses
and webhooks may change too. A namespace has a part of all dry runs at a time, so that one with thousands of templates
does not keep the jobs of others waiting.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from pydantic import ValidationError

from muster.api import spec
from muster.api.quantity import format_quantity
from muster.api.spec.pods import RESOURCE_CLAIMS_NOT_ALLOWED, pod_request
from muster.api.yaml_input.field_errors import field_path
from muster.api.yaml_input.undecodable import decode_truncated
from muster.api.yaml_input.unknown_fields import unknown_in
from muster.cluster import CreatePod
from muster.errors import ClusterError, InvalidSpec
from muster.kube.async_client import INVALID_REQUEST_CODES, ApiError, AsyncKubeClient, is_server_wide
from muster.kube.objects import V1ObjectMeta
from muster.kube.resources import PODS, TRAINING_JOBS
from muster.model import MAX_AMOUNT
from muster_operator.cache.cached_job import CachedJob, DryRunResult
from muster_operator.cache.lru_cache import MAX_ENTRIES, LRUCache
from muster_operator.cache.specs import CachedTemplate, TemplateCache, trim_pod
from muster_operator.informers import read_by_name
from muster_operator.pod_builder.pods import PodConfig, pod_manifest

_LOG = logging.getLogger("muster.operator")
_REFRESH_PERIOD_S = 15.0  # minimum interval between retries of rejected templates
_RETRY_S = 2.0
_MAX_FAILURES = 2  # of the API server, before the pods count as rejected
_MAX_CONCURRENT, _MAX_CONCURRENT_PER_NAMESPACE = 8, 4
_MAX_BYTES = 16 * 2**20  # of pods that differ from their templates
_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}  # an unknown field is rejected by name instead of dropped
_COMPARED_FIELDS = ("containers", "initContainers", "resources", "overhead", "nodeSelector", "affinity", "tolerations",
              "terminationGracePeriodSeconds")  # fmt: skip
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_DEFAULT_TOLERATION_KEYS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_TemplateKey = tuple[str, str]  # namespace, digest of the template


class _Role(msgspec.Struct):
    name: str = ""
    template: msgspec.Raw = msgspec.Raw(b"{}")


class _Spec(msgspec.Struct):
    roles: list[_Role] = []


class _Job(msgspec.Struct):
    metadata: V1ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


@dataclass(frozen=True, slots=True)
class PodTemplateReader:
    """Pod templates as users wrote them, for the creation of pods: from `templates`, else from the API server."""

    api: AsyncKubeClient
    templates: TemplateCache
    _read_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # all pods of a gang need the same one at once

    async def read(self, job: CachedJob, role: str) -> dict[str, Any]:
        """The template of a role, which must not be modified. Raises ApiError of the API server, ApiError 409 where the
        job was edited or deleted meanwhile, and ClusterError if there is no answer."""
        template = job.templates[role]
        document = self.templates.document(template)
        if document is not None:
            return document
        async with self._read_lock:
            document = self.templates.document(template)
            if document is None:
                text = await self._fetch(job, role)
                if hashlib.sha256(text).hexdigest() != template.text:
                    raise ApiError(409, "Conflict", f"job {job.key} was edited or deleted meanwhile")
                self.templates.store(text)
                document = self.templates.document(template)
        assert document is not None, "just stored"
        return document

    async def _fetch(self, job: CachedJob, role: str) -> bytes:
        path, stored = TRAINING_JOBS.path(job.namespace), job if job.array is None else job.array
        found = await read_by_name(self.api, path, stored.job.metadata.name, _Job)
        roles = (one for item in found if item.metadata.uid == stored.uid for one in item.spec.roles)
        return next((bytes(one.template) for one in roles if one.name == role), b"")


class _DryRunPod(msgspec.Struct):
    spec: dict[str, Any]


_dry_run_pod = msgspec.json.Decoder(_DryRunPod)


@dataclass(slots=True)
class DryRuns:
    """Results by namespace and template."""

    api: AsyncKubeClient
    pod_config: PodConfig
    template_reader: PodTemplateReader
    refresh_s: float = 600.0  # how long a result is fresh for pending jobs
    clock: Callable[[], float] = time.monotonic
    retry_s: float = _RETRY_S  # after a failed call
    _results: LRUCache[_TemplateKey, DryRunResult] = field(default_factory=lambda: LRUCache(MAX_ENTRIES, _MAX_BYTES))
    _completed_at: dict[_TemplateKey, float] = field(default_factory=dict)
    _in_progress: dict[_TemplateKey, asyncio.Task[None]] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT))
    # By namespace; one exists while it is used.
    _slots_of: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        return self._results.get((namespace, template.digest))

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        return not self._is_stale((namespace, template.digest))

    def request(self, job: CachedJob, on_result: Callable[[str, str], None]) -> None:
        """Request a dry run of each template of the job without a result, with a rejection, or with an old result.

        `on_result` is called with namespace and digest of each template that has a new one.
        """
        for role, template in job.templates.items():
            key = (job.namespace, template.digest)
            known = self._results.get(key)
            fresh = known is not None and known.rejection is None and not self._is_stale(key)
            if key not in self._in_progress and not fresh:
                self._in_progress[key] = asyncio.create_task(self._run(key, job, role, on_result))

    def on_pod_refused(self, job: CachedJob, role: str, rejection: str) -> bool:
        """A real pod was rejected, so the result of the dry run is obsolete. Whether the result changes."""
        key = job.namespace, job.templates[role].digest
        known = self._results.get(key)
        if known is not None and known.rejection is not None:
            return False
        self._store(key, DryRunResult(rejection=rejection))
        return True

    async def refresh_periodically(self, request_all: Callable[[], None]) -> None:
        """Call `request_all`, which requests dry runs for all pending jobs, every few seconds until cancelled."""
        while True:
            await asyncio.sleep(min(_REFRESH_PERIOD_S, self.refresh_s))
            request_all()

    def _store(self, key: _TemplateKey, result: DryRunResult) -> None:
        pod = "" if result.pod is None else result.pod.model_dump_json()
        self._results.put(key, result, len(pod) + len(result.rejection or ""))

    def _is_stale(self, key: _TemplateKey) -> bool:
        at = self._completed_at.get(key)
        return at is None or self.clock() - at >= self.refresh_s

    async def _run(self, key: _TemplateKey, job: CachedJob, role: str, on_result: Callable[[str, str], None]) -> None:
        result, failures = None, 0
        slots = self._slots_of.setdefault(key[0], asyncio.Semaphore(_MAX_CONCURRENT_PER_NAMESPACE))
        try:
            while result is None:
                try:
                    async with slots, self._slots:
                        result = await self._run_once(job, role)
                except ClusterError as error:
                    failures += not is_server_wide(error)
                    if isinstance(error, ApiError) and failures >= _MAX_FAILURES:
                        result = DryRunResult(rejection=_without_generated_name(error.message))
                        break
                    _LOG.warning("dry run", extra={"job": job.job.metadata.name, "why": str(error)})
                    await asyncio.sleep(self.retry_s)
                except Exception as error:  # a bug that this template caused: it is retried while the job waits
                    _LOG.exception("dry run", extra={"job": job.job.metadata.name})
                    result = DryRunResult(rejection=f"dry run of its pods failed: {type(error).__name__}: {error}")
        finally:
            del self._in_progress[key]
        before, was_stale = self._results.get(key), self._is_stale(key)
        if len(self._completed_at) >= MAX_ENTRIES:
            self._completed_at.clear()  # costs only repeated dry runs
        self._completed_at[key] = self.clock()
        self._store(key, result)
        if result != before or was_stale:
            on_result(*key)

    async def _run_once(self, job: CachedJob, role: str) -> DryRunResult:
        example = CreatePod(
            job_uid=job.uid,
            name="",
            role=role,
            index=0,
            replicas=1,
            attempt=0,
            node="",
            flavor="",
            rank0_node="",
            grace_s=0.0,
        )
        try:
            document = await self.template_reader.read(job, role)
            manifest = pod_manifest(job.job, document, example, (), self.pod_config)
        except InvalidSpec as error:
            return DryRunResult(rejection=str(error))
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = "muster-dry-run-"
        path = PODS.path(job.namespace)
        try:
            answer = await self.api.post(path, msgspec.json.encode(manifest), _STRICT)
        except ApiError as error:
            if error.code in INVALID_REQUEST_CODES:
                return DryRunResult(rejection=_without_generated_name(_with_field_paths(error.message, document)))
            raise
        try:
            created_pod = decode_truncated(_dry_run_pod.decode, answer)
        except ValueError as error:
            raise ClusterError(f"the answer to the dry run is not a pod: {answer[:200]!r}") from error
        return compare_pod(job.templates[role].model.spec, created_pod.spec)


def compare_pod(template: spec.PodSpec, created: Mapping[str, Any]) -> DryRunResult:
    """What the API server added to the template; a result without a pod if nothing relevant."""
    if created.get("resourceClaims"):
        return DryRunResult(
            rejection=f"the API server adds resourceClaims to the pod (a webhook or a policy): "
            f"{RESOURCE_CLAIMS_NOT_ALLOWED}"
        )
    try:
        created_spec = spec.PodSpec.model_validate(
            {name: created[name] for name in _COMPARED_FIELDS if name in created}
        )
        effective, template = trim_pod(created_spec), trim_pod(template)
        requested = pod_request(effective)
    except ValidationError as error:
        return DryRunResult(rejection=f"the pod that the API server makes of the template cannot be read: {error}")
    for name, amount in requested:
        if amount > MAX_AMOUNT:
            problem = f"one pod requests {name} {format_quantity(amount, name)}, more than the supported maximum"
            return DryRunResult(rejection=f"with the defaults of the API server, {problem}")
    same = (
        requested == pod_request(template)
        and effective.node_selector == template.node_selector
        and effective.affinity == template.affinity
        and all(
            one in template.tolerations or one.get("key") in _DEFAULT_TOLERATION_KEYS for one in effective.tolerations
        )
        and effective.termination_grace_period_seconds == template.termination_grace_period_seconds
    )
    return DryRunResult() if same else DryRunResult(pod=effective)


def _without_generated_name(message: str) -> str:
    """The API server's message without the generated name of the dry-run pod."""
    return message.replace('"muster-dry-run-', '"').strip() or "the API server refuses the pod"


def _with_field_paths(message: str, template: Mapping[str, Any]) -> str:
    """The message with the paths of unknown fields within the template, and with suggestions where the pinned
    Kubernetes schema does not know the field either."""
    unknown = _UNKNOWN_FIELD.findall(message)
    names = {re.split(r"[.\[\]]+", path)[-1] for path in unknown}
    found = [one for one in unknown_in("PodTemplateSpec", template) if one.path[-1] in names]
    written = "; ".join(f"{field_path(one.path)}: {one.message}" for one in found)
    return written if found and len(found) == len(unknown) else "; ".join(part for part in (message, written) if part)
