"""Parsed job specs, shared by all jobs with the same text.

Thousands of jobs may differ only in their names, which are not part of the spec. They share one parsed and validated
value, so that derived values can be cached by its identity.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from muster.api import spec
from muster.api.spec.limits import size_error
from muster_operator.cache.lru_cache import LRUCache
from muster_operator.cache.templates import CachedTemplate, TemplateCache
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector

_MAX_BYTES = 16 * 2**20
_STRING = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL
)  # possessive: backtracking would need 100 bytes a character
_Fields = dict[str, msgspec.Raw]
_Pods = Mapping[str, spec.PodSpec]


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
        self._parsed = LRUCache[bytes, ParsedSpec](max_bytes=_MAX_BYTES)
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
        wanted = spec.TrainingJobSpec.model_validate({**rest, "roles": roles})
        if wanted.stall_timeout_seconds is not None and not self._collectors.image:
            # Without heartbeats every job would count as stalled.
            wanted = wanted.model_copy(update={"stall_timeout_seconds": None})
        for name, template in templates.items():
            if has_collector(wanted, name, 0, self._collectors):  # its pods differ from those without
                templates[name] = replace(template, digest=f"{template.digest}+collector")
        return ParsedSpec(wanted, templates, fault)


def check_size(roles: msgspec.Raw | bytes) -> None:
    """Count nodes and bytes of the compact JSON that the API server writes, without decoding. Raises SpecTooLarge."""
    text = bytes(roles)
    plain = _STRING.sub(b"0", text)
    inside = plain.count(b"{") - plain.count(b"{}") + plain.count(b"[") - plain.count(b"[]")
    fault = size_error(1 + plain.count(b",") + inside, len(text))
    if fault is not None:
        raise SpecTooLarge(f"spec.roles: {fault}")
