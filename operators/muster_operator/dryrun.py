"""What pods of a template really ask for, learned by asking the API server to pretend to create one.

Defaults, admission plugins and webhooks add resources, overhead and sidecars, or refuse the pod. So before a job is
shown to the engine, one server-side dry run for each template and namespace tells. A refusal is asked about again and
again: a missing service account or a quota of the namespace may be mended any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import ValidationError

from muster import spec
from muster.cluster import CreatePod
from muster.errors import ClusterError
from muster.snapshot import pod_request
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import PODS
from muster_operator.manifests.pods import PodChoices, pod_manifest
from muster_operator.sight.jobs import KnownJob, Verdict
from muster_operator.sight.templates import Template

_LOG = logging.getLogger("muster.operator")
_REFUSALS = frozenset({400, 403, 404, 413, 422})
_AGAIN_S = 15.0  # how often refused templates are tried anew
_RETRY_S = 2.0
_AT_ONCE = 8
_MOST = 20_000
_READ_BACK = ("containers", "initContainers", "overhead", "nodeSelector", "affinity", "tolerations",
              "terminationGracePeriodSeconds")  # fmt: skip
_BY_DEFAULT = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_Key = tuple[str, str]  # namespace, digest of the template


@dataclass(slots=True)
class DryRuns:
    """Verdicts by namespace and template. `learned` is called whenever there is a new one."""

    api: Api
    choices: PodChoices
    learned: Callable[[str, str], None] = lambda namespace, digest: None
    _verdicts: dict[_Key, Verdict] = field(default_factory=dict)
    _asking: dict[_Key, asyncio.Task[None]] = field(default_factory=dict)
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    def verdict(self, namespace: str, template: Template) -> Verdict | None:
        """What is known; None: not asked yet, or no answer yet."""
        return self._verdicts.get((namespace, template.digest))

    def ask(self, job: KnownJob) -> None:
        """Ask about each template of the job that is not known or was refused."""
        for role, template in job.templates.items():
            key = (job.namespace, template.digest)
            known = self._verdicts.get(key)
            if key not in self._asking and (known is None or known.refusal is not None):
                self._asking[key] = asyncio.create_task(self._find_out(key, job.job, role, template))

    def refused(self, job: KnownJob, role: str, refusal: str) -> bool:
        """A real pod was refused: what the dry run said does not hold any more. Whether that is news."""
        key = job.namespace, job.templates[role].digest
        known = self._verdicts.get(key)
        if known is not None and known.refusal is not None:
            return False
        self._verdicts[key] = Verdict(refusal=refusal)
        self.learned(*key)
        return True

    async def ask_again(self, refused: Callable[[], None]) -> None:
        """Call `refused` every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            refused()

    async def _find_out(self, key: _Key, job: spec.TrainingJob, role: str, template: Template) -> None:
        verdict: Verdict | None = None
        try:
            while verdict is None:
                try:
                    async with self._turn:
                        verdict = await self._try(job, role, template)
                except ClusterError as error:
                    _LOG.warning("dry run", extra={"job": job.metadata.name, "why": str(error)})
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._asking[key]
        before = self._verdicts.get(key)
        if len(self._verdicts) >= _MOST:
            self._verdicts.clear()  # only costs asking again
        self._verdicts[key] = verdict
        if verdict != before:
            self.learned(*key)

    async def _try(self, job: spec.TrainingJob, role: str, template: Template) -> Verdict:
        example = CreatePod(
            job_uid=job.metadata.uid,
            name="",
            role=role,
            index=0,
            replicas=1,
            attempt=0,
            node="",
            flavor="",
            rank0_node="",
        )
        manifest = pod_manifest(job, template.document, example, (), self.choices)
        del manifest["metadata"]["name"]
        manifest["metadata"]["generateName"] = "muster-dry-run-"
        path = PODS.path(job.metadata.namespace)
        try:
            answer = await self.api.post(path, msgspec.json.encode(manifest), {"dryRun": "All"})
        except ApiError as error:
            if error.code in _REFUSALS:
                return Verdict(refusal=_in_short(error.message))
            raise
        return judged(template.model.spec, msgspec.json.decode(answer)["spec"])


def judged(written: spec.PodSpec, answered: Mapping[str, Any]) -> Verdict:
    """What the answer says beyond the template; a verdict without a pod if that is nothing we care about."""
    try:
        really = spec.PodSpec.model_validate({name: answered[name] for name in _READ_BACK if name in answered})
    except ValidationError as error:
        return Verdict(refusal=f"the API server turns the template into something that cannot be read: {error}")
    same = (
        pod_request(really) == pod_request(written)
        and really.node_selector == written.node_selector
        and really.affinity == written.affinity
        and all(one in written.tolerations or one.get("key") in _BY_DEFAULT for one in really.tolerations)
        and really.termination_grace_period_seconds == written.termination_grace_period_seconds
    )
    return Verdict() if same else Verdict(pod=really)


def _in_short(message: str) -> str:
    """The API server's sentence without the name it made up for the pretended pod."""
    return message.replace('"muster-dry-run-', '"').strip() or "the API server refuses the pod"
