"""uid preconditions: a change or delete must not reach another object that was created with the same name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from muster.errors import Conflict, InvalidSpec, MusterError
from muster.kube.sync_client import JsonObject


def uid_precondition(uid: str) -> JsonObject:
    """DeleteOptions with the object's uid. The server ignores query parameters if a body is sent."""
    return {"preconditions": {"uid": uid}}


def is_uid_mismatch(error: MusterError) -> bool:
    """Whether a write was refused because the object's uid differs."""
    if isinstance(error, InvalidSpec):
        return error.field == "metadata.uid"
    return isinstance(error, Conflict) and "UID in" in str(error)


@contextlib.contextmanager
def uid_mismatch_as_conflict(object_label: str) -> Iterator[None]:
    """Raise `Conflict` if a write with a uid precondition finds a recreated object. `object_label` is the object as
    text, such as `queue research`."""
    try:
        yield
    except (Conflict, InvalidSpec) as error:
        if not is_uid_mismatch(error):
            raise
        raise replaced_conflict(object_label) from error


def replaced_conflict(object_label: str) -> Conflict:
    """The error for an object that was deleted and recreated."""
    return Conflict(f"{object_label} was deleted and recreated concurrently; check the new one and retry")
