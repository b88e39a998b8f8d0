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
from muster.documents.complaints import field_path
from muster.documents.pod_fields import unknown_in
from muster.documents.shorn import decoded
from muster.errors import ClusterError, InvalidSpec
from muster.model import LARGEST
from muster.quantity import format_quantity
from muster.snapshot import pod_request
from muster.spec.pods import NO_CLAIMS
from muster_operator.documents import TemplateDocuments
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import PODS
from muster_operator.manifests.pods import PodChoices, pod_manifest
from muster_operator.refusals import FORBIDDEN, concerns_everybody
from muster_operator.sight.known_job import KnownJob, Verdict
from muster_operator.sight.recent import MOST, Recent
from muster_operator.sight.templates import Template, trimmed_pod

_LOG = logging.getLogger("muster.operator")
_AGAIN_S = 15.0  # how often refused templates are tried anew, at most
_RETRY_S = 2.0
_FAILURES = 2  # that the API server has to answer with before its pods count as refused
_AT_ONCE = 8
_MOST_BYTES = 16 * 2**20  # of pods that are others than their templates
_STRICT = {"dryRun": "All", "fieldValidation": "Strict"}  # a misspelt field is refused by name, not dropped
_READ_BACK = ("containers", "initContainers", "resources", "overhead", "nodeSelector", "affinity", "tolerations",
              "terminationGracePeriodSeconds")  # fmt: skip
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_BY_DEFAULT = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_Key = tuple[str, str]  # namespace, digest of the template


class _Pretended(msgspec.Struct):
    spec: dict[str, Any]


_pretended = msgspec.json.Decoder(_Pretended)


@dataclass(slots=True)
class DryRuns:
    """Verdicts by namespace and template. `learned` is called whenever there is a new one."""

    api: Api
    choices: PodChoices
    documents: TemplateDocuments
    learn_again_s: float = 600.0  # how long a verdict counts for jobs that wait
    clock: Callable[[], float] = time.monotonic
    retry_s: float = _RETRY_S  # after a call without success
    learned: Callable[[str, str], None] = lambda namespace, digest: None
    _verdicts: Recent[_Key, Verdict] = field(default_factory=lambda: Recent(MOST, _MOST_BYTES))
    _learned_at: dict[_Key, float] = field(default_factory=dict)
    _asking: dict[_Key, asyncio.Task[None]] = field(default_factory=dict)
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    def verdict(self, namespace: str, template: Template) -> Verdict | None:
        """What is known; None: not asked yet, or no answer yet."""
        return self._verdicts.get((namespace, template.digest))

    def is_fresh(self, namespace: str, template: Template) -> bool:
        """Whether what is known was learned lately enough for a job that has just come."""
        return not self._is_old((namespace, template.digest))

    def ask(self, job: KnownJob) -> None:
        """Ask about each template of the job that is not known, was refused, or was learned long ago."""
        for role, template in job.templates.items():
            key = (job.namespace, template.digest)
            known = self._verdicts.get(key)
            fresh = known is not None and known.refusal is None and not self._is_old(key)
            if key not in self._asking and not fresh:
                self._asking[key] = asyncio.create_task(self._find_out(key, job, role))

    def refused(self, job: KnownJob, role: str, refusal: str) -> bool:
        """A real pod was refused: what the dry run said does not hold any more. Whether that is news."""
        key = job.namespace, job.templates[role].digest
        known = self._verdicts.get(key)
        if known is not None and known.refusal is not None:
            return False
        self._keep(key, Verdict(refusal=refusal))
        self.learned(*key)
        return True

    async def ask_again(self, waiting: Callable[[], None]) -> None:
        """Call `waiting`, which asks for all that jobs wait by, every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(min(_AGAIN_S, self.learn_again_s))
            waiting()

    def _keep(self, key: _Key, verdict: Verdict) -> None:
        pod = "" if verdict.pod is None else verdict.pod.model_dump_json()
        self._verdicts.put(key, verdict, len(pod) + len(verdict.refusal or ""))

    def _is_old(self, key: _Key) -> bool:
        at = self._learned_at.get(key)
        return at is None or self.clock() - at >= self.learn_again_s

    async def _find_out(self, key: _Key, job: KnownJob, role: str) -> None:
        verdict, failures = None, 0
        try:
            while verdict is None:
                try:
                    async with self._turn:
                        verdict = await self._try(job, role)
                except ClusterError as error:
                    failures += not concerns_everybody(error)
                    if isinstance(error, ApiError) and failures >= _FAILURES:
                        verdict = Verdict(refusal=_in_short(error.message))
                        break
                    _LOG.warning("dry run", extra={"job": job.job.metadata.name, "why": str(error)})
                    await asyncio.sleep(self.retry_s)
                except Exception as error:  # a bug that this template met; as long as the job waits it is tried again
                    _LOG.exception("dry run", extra={"job": job.job.metadata.name})
                    verdict = Verdict(refusal=f"its pods cannot be tried: {type(error).__name__}: {error}")
        finally:
            del self._asking[key]
        before, awaited = self._verdicts.get(key), self._is_old(key)
        if len(self._learned_at) >= MOST:
            self._learned_at.clear()  # only costs asking again
        self._learned_at[key] = self.clock()
        self._keep(key, verdict)
        if verdict != before or awaited:
            self.learned(*key)

    async def _try(self, job: KnownJob, role: str) -> Verdict:
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
            document = await self.documents.read(job, role)
            manifest = pod_manifest(job.job, document, example, (), self.choices)
        except InvalidSpec as error:
            return Verdict(refusal=str(error))
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = "muster-dry-run-"
        path = PODS.path(job.namespace)
        try:
            answer = await self.api.post(path, msgspec.json.encode(manifest), _STRICT)
        except ApiError as error:
            if error.code in FORBIDDEN:
                return Verdict(refusal=_in_short(_as_written(error.message, document)))
            raise
        try:
            pretended = decoded(_pretended.decode, answer)
        except ValueError as error:
            raise ClusterError(f"the answer is no pod: {answer[:200]!r}") from error
        return judged(job.templates[role].model.spec, pretended.spec)


def judged(written: spec.PodSpec, answered: Mapping[str, Any]) -> Verdict:
    """What the answer says beyond the template; a verdict without a pod if that is nothing we care about."""
    if answered.get("resourceClaims"):
        return Verdict(refusal=f"the API server adds resourceClaims to the pod (a webhook or a policy): {NO_CLAIMS}")
    try:
        whole = spec.PodSpec.model_validate({name: answered[name] for name in _READ_BACK if name in answered})
        really, written = trimmed_pod(whole), trimmed_pod(written)
        asked = pod_request(really)
    except ValidationError as error:
        return Verdict(refusal=f"the API server turns the template into something that cannot be read: {error}")
    for name, amount in asked:
        if amount > LARGEST:
            told = f"one pod asks for {name} {format_quantity(amount, name)}, more than anything can have"
            return Verdict(refusal=f"as the API server completes the template, {told}")
    same = (
        asked == pod_request(written)
        and really.node_selector == written.node_selector
        and really.affinity == written.affinity
        and all(one in written.tolerations or one.get("key") in _BY_DEFAULT for one in really.tolerations)
        and really.termination_grace_period_seconds == written.termination_grace_period_seconds
    )
    return Verdict() if same else Verdict(pod=really)


def _in_short(message: str) -> str:
    """The API server's sentence without the name it made up for the pretended pod."""
    return message.replace('"muster-dry-run-', '"').strip() or "the API server refuses the pod"


def _as_written(message: str, template: Mapping[str, Any]) -> str:
    """The message, with fields of the template that the API server does not know at their own places, and with the
    names that were probably meant, where the pinned document of Kubernetes does not know them either."""
    unknown = _UNKNOWN.findall(message)
    names = {re.split(r"[.\[\]]+", path)[-1] for path in unknown}
    found = [one for one in unknown_in("PodTemplateSpec", template) if one.path[-1] in names]
    written = "; ".join(f"{field_path(one.path)}: {one.message}" for one in found)
    return written if found and len(found) == len(unknown) else "; ".join(part for part in (message, written) if part)
