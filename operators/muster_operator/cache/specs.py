"""Parsed job specs and pod templates, shared by all jobs with the same text.

Thousands of jobs may differ only in their names, which are not part of the spec. They share one parsed and validated
value, so that derived values can be cached by its identity, and a template is dry-run once. The parsed model of a
template, trimmed to what decisions need, lives as long as a job has it. Its text is needed only to create pods: it is
cached within a byte limit, and read from the API server again otherwise.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from muster.api import spec
from muster.api.pod_security import NO_VIOLATIONS, PodSecurityViolations, pod_security_violations
from muster.api.spec.limits import size_error
from muster.api.spec.pods import pod_request
from muster.model import Resources
from muster_operator.cache.lru_cache import LRUCache
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector
from muster_operator.pod_builder.run_folder import run_folder_fields

_MAX_SPEC_BYTES = 16 * 2**20
_MAX_TEXTS, _MAX_TEXT_BYTES = 200_000, 128 * 2**20  # of templates
_MAX_DECODED, _MAX_DECODED_BYTES = 32, 4 * 2**20
_TOLERATION_FIELDS = ("key", "operator", "value", "effect", "tolerationSeconds")
_REQUIREMENT_FIELDS = ("key", "operator", "values")
# possessive: backtracking would need 100 bytes a character
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_Fields = dict[str, msgspec.Raw]
_Pods = Mapping[str, spec.PodSpec]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CachedTemplate:
    """A pod template: `model` for decisions, and the request that it states itself.

    `digest` is equal for templates whose pods are created alike in one namespace; `text` is the SHA-256 of the user's
    text, and `size` its bytes. `violations` are those of the Pod Security Standards in that text.
    """

    digest: str
    text: str
    size: int
    model: spec.PodTemplate
    request: Resources
    violations: PodSecurityViolations = NO_VIOLATIONS


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
            document = msgspec.json.decode(text)
            model = trim_template(spec.PodTemplate.model_validate(document))
            known = self._known[digest] = CachedTemplate(
                digest, digest, len(text), model, pod_request(model.spec), pod_security_violations(document)
            )
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


class SpecTooLarge(Exception):
    """The roles of a spec exceed the limit, so they are not decoded."""


@dataclass(frozen=True, slots=True)
class ParsedSpec:
    """A parsed spec, and the template of each role."""

    spec: spec.TrainingJobSpec
    templates: Mapping[str, CachedTemplate]  # by role
    fault: SpecTooLarge | None = None  # for jobs that were not accepted yet


class _EffectiveSpec(NamedTuple):
    written: weakref.ref[spec.TrainingJobSpec]
    pods: _Pods
    made: spec.TrainingJobSpec


class SpecCache:
    """Parsed specs by text. The API server writes keys in order, so equal specs have equal texts."""

    def __init__(self, collectors: CollectorSidecarConfig, templates: TemplateCache | None = None) -> None:
        self._collectors = collectors
        self._templates = TemplateCache() if templates is None else templates
        self._parsed = LRUCache[bytes, ParsedSpec](max_bytes=_MAX_SPEC_BYTES)
        self._effective: dict[int, _EffectiveSpec] = {}  # by identity of the spec, while it is referenced

    def read(self, text: bytes, digest: bytes, *, accepted: bool = False) -> ParsedSpec:
        """The parsed text; `digest` is its SHA-256. `accepted`: an operator has accepted this spec already, so it may
        exceed the present limit. Raises SpecTooLarge and pydantic's ValidationError."""
        known = self._parsed.get(digest)
        if known is None:
            known = self._read(text, accepted=accepted)
            self._parsed.put(digest, known, len(text))
        if known.fault is not None and not accepted:
            raise known.fault
        return known

    def with_effective_pods(self, job_spec: spec.TrainingJobSpec, pods: _Pods) -> spec.TrainingJobSpec:
        """The spec with other pods for some roles (by name); the same value for the same arguments."""
        key = id(job_spec)
        known = self._effective.get(key)
        if known is not None and known.written() is job_spec and known.pods == pods:
            return known.made
        roles = [
            role.model_copy(update={"template": role.template.model_copy(update={"spec": pods[role.name]})})
            if role.name in pods
            else role
            for role in job_spec.roles
        ]
        made = job_spec.model_copy(update={"roles": roles})
        self._effective[key] = _EffectiveSpec(
            weakref.ref(job_spec, lambda _: self._effective.pop(key, None)), pods, made
        )
        return made

    def _read(self, text: bytes, *, accepted: bool) -> ParsedSpec:
        fields = msgspec.json.decode(text, type=_Fields)
        fault: SpecTooLarge | None = None
        try:
            check_size(fields.get("roles", b""))
        except SpecTooLarge as error:
            if not accepted:
                raise
            fault = SpecTooLarge(*error.args)
        roles, templates = [], {}
        for role in msgspec.json.decode(fields.pop("roles", msgspec.Raw(b"[]")), type=list[_Fields]):
            template = self._templates.read(bytes(role.pop("template", msgspec.Raw(b"{}"))))
            document: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in role.items()}
            templates[str(document.get("name"))] = template
            roles.append({**document, "template": template.model})
        rest = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        job_spec = spec.TrainingJobSpec.model_validate({**rest, "roles": roles})
        if job_spec.has_step_timeout and not self._collectors.image:
            # Without heartbeats every job would count as stalled.
            job_spec = job_spec.model_copy(update={"stall_timeout_seconds": None, "first_step_timeout_seconds": None})
        for name, template in templates.items():
            if has_collector(job_spec, name, 0, self._collectors):  # its pods differ from those without
                templates[name] = replace(template, digest=f"{template.digest}+collector")
        return ParsedSpec(job_spec, templates, fault)


def check_size(roles: msgspec.Raw | bytes) -> None:
    """Raise SpecTooLarge if roles have too many values or bytes."""
    fault = size_error(*count_json(roles))
    if fault is not None:
        raise SpecTooLarge(f"spec.roles: {fault}")


def count_json(text: msgspec.Raw | bytes) -> tuple[int, int]:
    """Values and bytes of the compact JSON that the API server writes, without decoding."""
    compact = bytes(text)
    plain = _STRING.sub(b"0", compact)
    inside = plain.count(b"{") - plain.count(b"{}") + plain.count(b"[") - plain.count(b"[]")
    return 1 + plain.count(b",") + inside, len(compact)
