"""What pods of a template really ask for, learned by asking the API server to pretend to create one.

Defaults, admission plugins and webhooks add resources, overhead and sidecars, or refuse the pod. So before a job is
shown to the engine, one server-side dry run for each template and namespace tells. A refusal is asked about again and
again: a missing service account or a quota of the namespace may be mended any time. So is a failure that stays, as of a
webhook that does not answer: the job waits, and is told why. Verdicts by which jobs wait are
asked for anew after a while, since LimitRanges, RuntimeClasses and webhooks may be edited, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import ValidationError

from muster import spec
from muster.cluster import CreatePod
from muster.errors import ClusterError, InvalidSpec
from muster.model import MAX_AMOUNT
from muster.quantity import format_quantity
from muster.snapshot import pod_request
from muster.spec.pods import RESOURCE_CLAIMS_NOT_ALLOWED
from muster.yaml_input.field_errors import field_path
from muster.yaml_input.pod_fields import unknown_in
from muster.yaml_input.truncate import decode_truncated
from muster_operator.cache.cached_job import CachedJob, DryRunResult
from muster_operator.cache.lru_cache import MAX_ENTRIES, LRUCache
from muster_operator.cache.templates import CachedTemplate, trim_pod
from muster_operator.kube.client import ApiError, ApiServerClient
from muster_operator.kube.resources import PODS
from muster_operator.pod_builder.pods import PodConfig, pod_manifest
from muster_operator.retry_limiter import INVALID_REQUEST_CODES, is_server_wide
from muster_operator.template_reader import PodTemplateReader

_LOG = logging.getLogger("muster.operator")
_REFRESH_PERIOD_S = 15.0  # how often refused templates are tried anew, at most
_RETRY_S = 2.0
_MAX_FAILURES = 2  # that the API server has to answer with before its pods count as refused
_MAX_CONCURRENT = 8
_MAX_BYTES = 16 * 2**20  # of pods that are others than their templates
_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}  # a misspelt field is refused by name, not dropped
_COMPARED_FIELDS = ("containers", "initContainers", "resources", "overhead", "nodeSelector", "affinity", "tolerations",
              "terminationGracePeriodSeconds")  # fmt: skip
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')
_DEFAULT_TOLERATION_KEYS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_TemplateKey = tuple[str, str]  # namespace, digest of the template


class _DryRunPod(msgspec.Struct):
    spec: dict[str, Any]


_dry_run_pod = msgspec.json.Decoder(_DryRunPod)


@dataclass(slots=True)
class DryRuns:
    """Verdicts by namespace and template. `learned` is called whenever there is a new one."""

    api: ApiServerClient
    pod_config: PodConfig
    template_reader: PodTemplateReader
    refresh_s: float = 600.0  # how long a verdict counts for jobs that wait
    clock: Callable[[], float] = time.monotonic
    retry_s: float = _RETRY_S  # after a call without success
    on_result: Callable[[str, str], None] = lambda namespace, digest: None
    _results: LRUCache[_TemplateKey, DryRunResult] = field(default_factory=lambda: LRUCache(MAX_ENTRIES, _MAX_BYTES))
    _completed_at: dict[_TemplateKey, float] = field(default_factory=dict)
    _in_progress: dict[_TemplateKey, asyncio.Task[None]] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT))

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        """What is known; None: not asked yet, or no answer yet."""
        return self._results.get((namespace, template.digest))

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        """Whether what is known was learned lately enough for a job that has just come."""
        return not self._is_stale((namespace, template.digest))

    def request(self, job: CachedJob) -> None:
        """Ask about each template of the job that is not known, was refused, or was learned long ago."""
        for role, template in job.templates.items():
            key = (job.namespace, template.digest)
            known = self._results.get(key)
            fresh = known is not None and known.refusal is None and not self._is_stale(key)
            if key not in self._in_progress and not fresh:
                self._in_progress[key] = asyncio.create_task(self._run(key, job, role))

    def on_pod_refused(self, job: CachedJob, role: str, refusal: str) -> bool:
        """A real pod was refused: what the dry run said does not hold any more. Whether that is news."""
        key = job.namespace, job.templates[role].digest
        known = self._results.get(key)
        if known is not None and known.refusal is not None:
            return False
        self._store(key, DryRunResult(refusal=refusal))
        self.on_result(*key)
        return True

    async def refresh_periodically(self, request_all: Callable[[], None]) -> None:
        """Call `waiting`, which asks for all that jobs wait by, every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(min(_REFRESH_PERIOD_S, self.refresh_s))
            request_all()

    def _store(self, key: _TemplateKey, verdict: DryRunResult) -> None:
        pod = "" if verdict.pod is None else verdict.pod.model_dump_json()
        self._results.put(key, verdict, len(pod) + len(verdict.refusal or ""))

    def _is_stale(self, key: _TemplateKey) -> bool:
        at = self._completed_at.get(key)
        return at is None or self.clock() - at >= self.refresh_s

    async def _run(self, key: _TemplateKey, job: CachedJob, role: str) -> None:
        verdict, failures = None, 0
        try:
            while verdict is None:
                try:
                    async with self._slots:
                        verdict = await self._run_once(job, role)
                except ClusterError as error:
                    failures += not is_server_wide(error)
                    if isinstance(error, ApiError) and failures >= _MAX_FAILURES:
                        verdict = DryRunResult(refusal=_without_generated_name(error.message))
                        break
                    _LOG.warning("dry run", extra={"job": job.job.metadata.name, "why": str(error)})
                    await asyncio.sleep(self.retry_s)
                except Exception as error:  # a bug that this template met; as long as the job waits it is tried again
                    _LOG.exception("dry run", extra={"job": job.job.metadata.name})
                    verdict = DryRunResult(refusal=f"its pods cannot be tried: {type(error).__name__}: {error}")
        finally:
            del self._in_progress[key]
        before, awaited = self._results.get(key), self._is_stale(key)
        if len(self._completed_at) >= MAX_ENTRIES:
            self._completed_at.clear()  # only costs asking again
        self._completed_at[key] = self.clock()
        self._store(key, verdict)
        if verdict != before or awaited:
            self.on_result(*key)

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
        )
        try:
            document = await self.template_reader.read(job, role)
            manifest = pod_manifest(job.job, document, example, (), self.pod_config)
        except InvalidSpec as error:
            return DryRunResult(refusal=str(error))
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = "muster-dry-run-"
        path = PODS.path(job.namespace)
        try:
            answer = await self.api.post(path, msgspec.json.encode(manifest), _STRICT)
        except ApiError as error:
            if error.code in INVALID_REQUEST_CODES:
                return DryRunResult(refusal=_without_generated_name(_with_field_paths(error.message, document)))
            raise
        try:
            pretended = decode_truncated(_dry_run_pod.decode, answer)
        except ValueError as error:
            raise ClusterError(f"the answer is no pod: {answer[:200]!r}") from error
        return compare_pod(job.templates[role].model.spec, pretended.spec)


def compare_pod(template: spec.PodSpec, created: Mapping[str, Any]) -> DryRunResult:
    """What the answer says beyond the template; a verdict without a pod if that is nothing we care about."""
    if created.get("resourceClaims"):
        return DryRunResult(
            refusal=f"the API server adds resourceClaims to the pod (a webhook or a policy): "
            f"{RESOURCE_CLAIMS_NOT_ALLOWED}"
        )
    try:
        whole = spec.PodSpec.model_validate({name: created[name] for name in _COMPARED_FIELDS if name in created})
        really, template = trim_pod(whole), trim_pod(template)
        asked = pod_request(really)
    except ValidationError as error:
        return DryRunResult(refusal=f"the API server turns the template into something that cannot be read: {error}")
    for name, amount in asked:
        if amount > MAX_AMOUNT:
            told = f"one pod asks for {name} {format_quantity(amount, name)}, more than anything can have"
            return DryRunResult(refusal=f"as the API server completes the template, {told}")
    same = (
        asked == pod_request(template)
        and really.node_selector == template.node_selector
        and really.affinity == template.affinity
        and all(one in template.tolerations or one.get("key") in _DEFAULT_TOLERATION_KEYS for one in really.tolerations)
        and really.termination_grace_period_seconds == template.termination_grace_period_seconds
    )
    return DryRunResult() if same else DryRunResult(pod=really)


def _without_generated_name(message: str) -> str:
    """The API server's sentence without the name it made up for the pretended pod."""
    return message.replace('"muster-dry-run-', '"').strip() or "the API server refuses the pod"


def _with_field_paths(message: str, template: Mapping[str, Any]) -> str:
    """The message, with fields of the template that the API server does not know at their own places, and with the
    names that were probably meant, where the pinned document of Kubernetes does not know them either."""
    unknown = _UNKNOWN_FIELD.findall(message)
    names = {re.split(r"[.\[\]]+", path)[-1] for path in unknown}
    found = [one for one in unknown_in("PodTemplateSpec", template) if one.path[-1] in names]
    written = "; ".join(f"{field_path(one.path)}: {one.message}" for one in found)
    return written if found and len(found) == len(unknown) else "; ".join(part for part in (message, written) if part)
