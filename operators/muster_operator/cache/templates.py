"""Pod templates: one parsed value of each, shared by all jobs, and a bounded cache of their texts.

Thousands of jobs may differ only in their names; a template is parsed, checked and dry-run once. The parsed model,
trimmed to what decisions need, lives as long as a job has it. The text is needed only to create pods: it is cached
within a byte limit, and read from the API server again otherwise.
"""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.model import Resources
from muster_operator.cache.lru_cache import LRUCache
from muster_operator.pod_builder.run_folder import run_folder_fields

_MAX_TEXTS, _MAX_TEXT_BYTES = 200_000, 128 * 2**20
_MAX_DECODED, _MAX_DECODED_BYTES = 32, 4 * 2**20
_TOLERATION_FIELDS = ("key", "operator", "value", "effect")
_REQUIREMENT_FIELDS = ("key", "operator", "values")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CachedTemplate:
    """A pod template: `model` for decisions, and the request that it states itself.

    `digest` is equal for templates whose pods are created alike in one namespace; `text` is the SHA-256 of the user's
    text, and `size` its bytes.
    """

    digest: str
    text: str
    size: int
    model: spec.PodTemplate
    request: Resources


class TemplateCache:
    """Templates by text. The API server writes keys in order, so equal templates have equal texts."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, CachedTemplate] = weakref.WeakValueDictionary()
        self._texts = LRUCache[str, bytes](_MAX_TEXTS, _MAX_TEXT_BYTES)
        self._decoded = LRUCache[str, dict[str, Any]](_MAX_DECODED, _MAX_DECODED_BYTES)

    def read(self, text: bytes) -> CachedTemplate:
        """The template. Raises pydantic's ValidationError."""
        digest = self.store(text)
        known = self._known.get(digest)
        if known is None:
            model = trim_template(spec.PodTemplate.model_validate(msgspec.json.decode(text)))
            known = self._known[digest] = CachedTemplate(digest, digest, len(text), model, pod_request(model.spec))
        return known

    def store(self, text: bytes) -> str:
        """Cache the text; its SHA-256."""
        digest = hashlib.sha256(text).hexdigest()
        self._texts.put(digest, text, len(text))
        return digest

    def document(self, template: CachedTemplate) -> dict[str, Any] | None:
        """The decoded template, which must not be modified; None where the text has to be read again."""
        document = self._decoded.get(template.text)
        if document is None and (text := self._texts.get(template.text)) is not None:
            document = msgspec.json.decode(text)
            self._decoded.put(template.text, document, len(text))
        return document


def trim_template(template: spec.PodTemplate) -> spec.PodTemplate:
    """The template with only the fields that decisions need."""
    return spec.PodTemplate.model_construct(metadata=spec.TemplateMeta(), spec=trim_pod(template.spec))


def trim_pod(pod: spec.PodSpec) -> spec.PodSpec:
    """The pod spec with only the fields that decisions need."""
    env, mounts, volumes = run_folder_fields(pod)
    main, *others = pod.containers
    return spec.PodSpec.model_construct(
        containers=[_container(main, env=env, volume_mounts=mounts), *map(_container, others)],
        init_containers=[_container(one) for one in pod.init_containers],
        resources=_resources(pod.resources),
        overhead=pod.overhead,
        node_selector=pod.node_selector,
        affinity=_affinity(pod.affinity),
        tolerations=[_select(one, _TOLERATION_FIELDS) for one in pod.tolerations],
        volumes=volumes,
        host_network=pod.host_network,
        termination_grace_period_seconds=pod.termination_grace_period_seconds,
    )


def _container(container: spec.Container, **more: Any) -> spec.Container:
    return spec.Container.model_construct(
        name=container.name,
        resources=_resources(container.resources),
        restart_policy=container.restart_policy,
        **more,
    )


def _resources(resources: spec.ContainerResources) -> spec.ContainerResources:
    return spec.ContainerResources.model_construct(requests=resources.requests, limits=resources.limits)


def _affinity(affinity: dict[str, Any]) -> dict[str, Any]:
    """The required node affinity: all that the planner uses."""
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return {}
    terms = [
        {
            kind: [_select(line, _REQUIREMENT_FIELDS) for line in term.get(kind) or ()]
            for kind in ("matchExpressions", "matchFields")
            if term.get(kind)
        }
        for term in required.get("nodeSelectorTerms") or ()
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _select(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}
