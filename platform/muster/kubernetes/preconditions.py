"""Which object a name means. Whoever changes or deletes one stays with the object that was looked at first: it may be
deleted meanwhile, and another may get its name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from muster.errors import Conflict, InvalidSpec, MusterError
from muster.kubernetes.kube_client import JsonObject


def uid_precondition(uid: str) -> JsonObject:
    """The options of a DELETE of this object alone. The server reads no others, from the query, beside them."""
    return {"preconditions": {"uid": uid}}


def is_uid_mismatch(error: MusterError) -> bool:
    """Whether a write was refused because it was meant for an object of another uid than the one of its name."""
    if isinstance(error, InvalidSpec):
        return error.field == "metadata.uid"
    return isinstance(error, Conflict) and "UID in" in str(error)


@contextlib.contextmanager
def uid_mismatch_as_conflict(object_label: str) -> Iterator[None]:
    """A write that names the uid of its object: refused as `Conflict` that says so where the name is another's by now.
    `named` is the object for a person, such as `queue research`."""
    try:
        yield
    except (Conflict, InvalidSpec) as error:
        if not is_uid_mismatch(error):
            raise
        raise replaced_conflict(object_label) from error


def replaced_conflict(object_label: str) -> Conflict:
    """The name is another's by now."""
    return Conflict(f"{object_label} was deleted meanwhile, and another has its name; look at it and try again")
