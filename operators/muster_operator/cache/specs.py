"""Specs of jobs, read once however many jobs were written alike.

Thousands of jobs differ in nothing but their names, which are not in their specs. They share one value then: reading
and checking it is done for the first, and whoever works something out of it may remember that by its identity.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from muster import spec
from muster.spec.limits import size_error
from muster_operator.cache.lru_cache import LRUCache
from muster_operator.cache.templates import CachedTemplate, TemplateCache
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector

_MAX_BYTES = 16 * 2**20
_STRING = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL
)  # possessive: to go back would take 100 bytes a character
_Fields = dict[str, msgspec.Raw]
_Pods = Mapping[str, spec.PodSpec]


class SpecTooLarge(Exception):
    """The roles of a spec are larger than they may be: they are not decoded, since that is what is not to happen."""


@dataclass(frozen=True, slots=True)
class ParsedSpec:
    """What a job wants, and the template of each role."""

    spec: spec.TrainingJobSpec
    templates: Mapping[str, CachedTemplate]  # by role
    fault: SpecTooLarge | None = None  # for jobs that were not accepted yet


class _EffectiveSpec(NamedTuple):
    written: weakref.ref[spec.TrainingJobSpec]
    pods: _Pods
    made: spec.TrainingJobSpec


class SpecCache:
    """Known specs by their text. The API server writes keys in order, so the same spec is the same text."""

    def __init__(self, collectors: CollectorSidecarConfig, templates: TemplateCache | None = None) -> None:
        self._collectors = collectors
        self._templates = TemplateCache() if templates is None else templates
        self._parsed = LRUCache[bytes, ParsedSpec](max_bytes=_MAX_BYTES)
        self._effective: dict[int, _EffectiveSpec] = {}  # by the identity of the spec, as long as anybody has it

    def read(self, text: bytes, digest: bytes, *, accepted: bool = False) -> ParsedSpec:
        """What the text says; `digest` is its SHA-256. `accepted`: an operator has taken this spec already,
        so it may be larger than is allowed now. Raises TooLarge else, and pydantic's ValidationError."""
        known = self._parsed.get(digest)
        if known is None:
            known = self._read(text, accepted=accepted)
            self._parsed.put(digest, known, len(text))
        if known.fault is not None and not accepted:
            raise known.fault
        return known

    def with_effective_pods(self, job_spec: spec.TrainingJobSpec, pods: _Pods) -> spec.TrainingJobSpec:
        """The spec with other pods in some roles, by name; the same value for the same spec and pods."""
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
        wanted = spec.TrainingJobSpec.model_validate({**rest, "roles": roles})
        if wanted.stall_timeout_seconds is not None and not self._collectors.image:
            # Without beats every job would look as if it made no step.
            wanted = wanted.model_copy(update={"stall_timeout_seconds": None})
        for name, template in templates.items():
            if has_collector(wanted, name, 0, self._collectors):  # its pods are others than those without
                templates[name] = replace(template, digest=f"{template.digest}+collector")
        return ParsedSpec(wanted, templates, fault)


def check_size(roles: msgspec.Raw | bytes) -> None:
    """Count without decoding, in compact JSON as the API server writes it. Raises TooLarge."""
    text = bytes(roles)
    plain = _STRING.sub(b"0", text)
    inside = plain.count(b"{") - plain.count(b"{}") + plain.count(b"[") - plain.count(b"[]")
    fault = size_error(1 + plain.count(b",") + inside, len(text))
    if fault is not None:
        raise SpecTooLarge(f"spec.roles: {fault}")
