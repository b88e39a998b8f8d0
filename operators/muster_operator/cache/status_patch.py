"""What is written of a status: a merge patch of the fields that changed, or the whole status."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from muster.api import spec


def status_patch(
    old: spec.QueueingStatus, new: spec.QueueingStatus, resource_version: str | None = None
) -> dict[str, Any]:
    """The merge patch from one status to the other, guarded by `resource_version` if given.

    The phase accompanies changed conditions, also where it is the default, which a status that was never written lacks.
    """
    changed = changed_fields(old, new)
    if "conditions" in changed:
        changed["phase"] = new.phase
    patch: dict[str, Any] = {"status": changed}
    if resource_version is not None:
        patch["metadata"] = {"resourceVersion": resource_version}
    return patch


def status_replacement(metadata: spec.ObjectMeta, status: spec.QueueingStatus) -> dict[str, Any]:
    """The body that replaces the status of a job, guarded by uid and version. The API server takes nothing but the
    status from it. Fields with their defaults are left out, except for the phase."""
    whole = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    empty = type(status)().model_dump(mode="json", by_alias=True)
    return {
        "apiVersion": spec.API_VERSION,
        "kind": "TrainingJob",
        "metadata": metadata.model_dump(
            mode="json", by_alias=True, include={"name", "namespace", "uid", "resource_version"}
        ),
        "status": {name: value for name, value in whole.items() if name == "phase" or value != empty.get(name)},
    }


def changed_fields(old: BaseModel, new: BaseModel) -> dict[str, Any]:
    """Changed top-level fields in their API form; None removes one. Nested objects are complete.

    A merge patch keeps fields that it does not mention, so fields missing from a nested object are removed by name.
    """
    changed = {name for name in type(new).model_fields if not _same(getattr(old, name), getattr(new, name))}
    after = new.model_dump(mode="json", by_alias=True, include=changed)
    before = old.model_dump(mode="json", by_alias=True, include=changed)
    return {name: _merge_value(before.get(name), value) for name, value in after.items()}


def _same(a: Any, b: Any) -> bool:
    return a is b or a == b


def _merge_value(before: Any, after: Any) -> Any:
    """A value that merges `before` into `after`: lists replace, missing keys become None."""
    if not isinstance(after, dict):
        return _drop_nulls(after)
    removed = {name: None for name in before if name not in after} if isinstance(before, dict) else {}
    old = before if isinstance(before, dict) else {}
    return {**removed, **{name: _merge_value(old.get(name), value) for name, value in after.items()}}


def _drop_nulls(value: Any) -> Any:
    """Inside lists a null would be stored."""
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    if isinstance(value, dict):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return value
