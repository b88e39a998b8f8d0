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
from muster.spec.bounds import too_large
from muster_operator.manifests.collector import CollectorChoices, has_collector
from muster_operator.sight.recent import Recent
from muster_operator.sight.templates import Template, Templates

_MOST_BYTES = 16 * 2**20
_STRING = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL
)  # possessive: to go back would take 100 bytes a character
_Fields = dict[str, msgspec.Raw]
_Pods = Mapping[str, spec.PodSpec]


class TooLarge(Exception):
    """The roles of a spec are larger than they may be: they are not decoded, since that is what is not to happen."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job wants, and the template of each role."""

    spec: spec.TrainingJobSpec
    templates: Mapping[str, Template]  # by role
    fault: TooLarge | None = None  # for jobs that were not accepted yet


class _Real(NamedTuple):
    written: weakref.ref[spec.TrainingJobSpec]
    pods: _Pods
    made: spec.TrainingJobSpec


class Specs:
    """Known specs by their text. The API server writes keys in order, so the same spec is the same text."""

    def __init__(self, collectors: CollectorChoices, templates: Templates | None = None) -> None:
        self._collectors = collectors
        self._templates = Templates() if templates is None else templates
        self._known = Recent[bytes, Wanted](most_bytes=_MOST_BYTES)
        self._real: dict[int, _Real] = {}  # by the identity of the spec, as long as anybody has it

    def read(self, text: bytes, digest: bytes, *, accepted: bool = False) -> Wanted:
        """What the text says; `digest` is its SHA-256. `accepted`: an operator has taken this spec already,
        so it may be larger than is allowed now. Raises TooLarge else, and pydantic's ValidationError."""
        known = self._known.get(digest)
        if known is None:
            known = self._read(text, accepted=accepted)
            self._known.put(digest, known, len(text))
        if known.fault is not None and not accepted:
            raise known.fault
        return known

    def really(self, wanted: spec.TrainingJobSpec, pods: _Pods) -> spec.TrainingJobSpec:
        """The spec with other pods in some roles, by name; the same value for the same spec and pods."""
        key = id(wanted)
        known = self._real.get(key)
        if known is not None and known.written() is wanted and known.pods == pods:
            return known.made
        roles = [
            role.model_copy(update={"template": role.template.model_copy(update={"spec": pods[role.name]})})
            if role.name in pods
            else role
            for role in wanted.roles
        ]
        made = wanted.model_copy(update={"roles": roles})
        self._real[key] = _Real(weakref.ref(wanted, lambda _: self._real.pop(key, None)), pods, made)
        return made

    def _read(self, text: bytes, *, accepted: bool) -> Wanted:
        fields = msgspec.json.decode(text, type=_Fields)
        fault: TooLarge | None = None
        try:
            check_size(fields.get("roles", b""))
        except TooLarge as error:
            if not accepted:
                raise
            fault = TooLarge(*error.args)
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
        return Wanted(wanted, templates, fault)


def check_size(roles: msgspec.Raw | bytes) -> None:
    """Count without decoding, in compact JSON as the API server writes it. Raises TooLarge."""
    text = bytes(roles)
    plain = _STRING.sub(b"0", text)
    inside = plain.count(b"{") - plain.count(b"{}") + plain.count(b"[") - plain.count(b"[]")
    fault = too_large(1 + plain.count(b",") + inside, len(text))
    if fault is not None:
        raise TooLarge(f"spec.roles: {fault}")
