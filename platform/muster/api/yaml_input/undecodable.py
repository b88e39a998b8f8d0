"""Objects that cannot be decoded: JSON nested too deep, and objects that an older or newer CRD accepted.

Errors have the messages of `muster submit`. The valid part of a queue is used: it keeps its place in the tree, and its
running jobs remain charged to it.

Decoders are recursive, also for values that they skip: one deep field that nothing reads makes a list of a thousand
objects fail. Such a text is truncated without recursion and decoded again. The rest is still deeper than
`muster.api.spec` accepts, so a truncated object is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from muster.api import spec
from muster.api.spec.limits import MAX_DEPTH
from muster.api.yaml_input.field_errors import to_field_error
from muster.api.yaml_input.source_map import SourceMap
from muster.api.yaml_input.unknown_fields import unknown_fields

_MODELS: Mapping[str, type[spec.TrainingJob | spec.Queue | spec.Flavor]] = {
    "TrainingJob": spec.TrainingJob,
    "Queue": spec.Queue,
    "Flavor": spec.Flavor,
}
_MAX_ERRORS_SHOWN = 3
MAX_LEVELS = 2 * MAX_DEPTH
T = TypeVar("T")


def invalid_reason(document: Mapping[str, Any], kind: str) -> str | None:
    """The validation errors of an object, or None if it is valid.

    The status of a queue or flavor is not validated, since it is computed again.
    """
    validated = document if kind == "TrainingJob" else {key: part for key, part in document.items() if key != "status"}
    try:
        _MODELS[kind].model_validate(validated)
    except ValidationError as error:
        unknown = {field.path: field.message for field in unknown_fields(_MODELS[kind], validated)}
        found = [to_field_error(finding, SourceMap(document, {})) for finding in error.errors()]
        message = [f"{one.field}: {unknown.get(one.path, one.message)}" for one in found[:_MAX_ERRORS_SHOWN]]
        more = len(found) - len(message)
        return "; ".join(message) + (f"; and {more} more" if more else "")
    return None


def valid_part(document: Mapping[str, Any]) -> spec.Queue:
    """A queue with all valid fields of its spec and all valid entries of its resources; the others count as not set. An
    invalid status is replaced by an empty one."""
    written = document.get("spec")
    fields = written if isinstance(written, dict) else {}
    kept = {name: value for name, value in fields.items() if _is_valid({name: value})}
    entries = fields.get("resources")
    if "resources" not in kept and isinstance(entries, list):
        readable = {"resources": [entry for entry in entries if _is_valid({"resources": [entry]})]}
        kept |= readable if _is_valid(readable) else {}
    return spec.Queue.model_construct(
        api_version=spec.API_VERSION,
        kind="Queue",
        metadata=metadata_of(document),
        spec=spec.QueueSpec.model_validate(kept),
        status=_status(document.get("status")),
    )


def metadata_of(document: Mapping[str, Any]) -> spec.ObjectMeta:
    """The metadata of an object; only the name if it is invalid."""
    written = document["metadata"]
    try:
        return spec.ObjectMeta.model_validate(written)
    except ValidationError:
        return spec.ObjectMeta.model_construct(name=written["name"])


def _is_valid(fields: Mapping[str, Any]) -> bool:
    try:
        spec.QueueSpec.model_validate(fields)
    except ValidationError:
        return False
    return True


def _status(written: Any) -> spec.QueueStatus:
    try:
        return spec.QueueStatus.model_validate({} if written is None else written)
    except ValidationError:
        return spec.QueueStatus()


def decode_truncated(decode: Callable[[bytes], T], text: bytes) -> T:
    """`decode(text)`, or `decode` of the truncated text if it is nested too deep. Raises as `decode` does."""
    try:
        return decode(text)
    except RecursionError:
        pass  # retry outside of the handler, which keeps references to the frames of the recursion
    return decode(truncate_depth(bytes(text)))  # a part of an object is a `msgspec.Raw`


def truncate_value(value: Any, levels: int = MAX_LEVELS) -> Any:
    """As `truncate_depth`, for a decoded value: some decoders accept more levels than encoders."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return 0
    if isinstance(value, dict):
        return {key: truncate_value(inner, levels - 1) for key, inner in value.items()}
    return [truncate_value(inner, levels - 1) for inner in value]


def truncate_depth(text: bytes, levels: int = MAX_LEVELS, chunk_bytes: int = 1 << 20) -> bytes:
    """JSON text with 0 in place of every list and object more than `levels` deep. Linear time, and little memory in
    addition to the text; undefined for text that is not JSON."""
    pieces: list[bytes] = []
    whole, inside, depth = True, False, 0  # of a string, and how deep, where the next piece begins
    for piece in _chunks(text, chunk_bytes):
        # Backslashes stand in strings only. Without pairs of them, and escaped quotes, each quote begins or ends one.
        plain = np.frombuffer(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
        outside = np.logical_xor.accumulate(plain == ord('"')) == inside
        opens = outside & ((plain == ord("{")) | (plain == ord("[")))
        closes = outside & ((plain == ord("}")) | (plain == ord("]")))
        depths = depth + np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
        kept = depths <= levels
        if not kept.all() or depth > levels:
            out = np.frombuffer(piece, np.uint8).copy()
            out[closes & (depths == levels)] = ord("0")  # the end of each removed value
            piece, whole = out[kept].tobytes(), False
        pieces.append(piece)
        inside, depth = not outside[-1], int(depths[-1])
    return text if whole else b"".join(pieces)


def _chunks(text: bytes, max_bytes: int) -> Iterator[bytes]:
    """The text in pieces; no piece ends between a backslash and the character that it escapes."""
    begin = 0
    while begin < len(text):
        end = begin + max_bytes
        while end < len(text) and text[end - 1] == ord("\\"):
            end += 1
        yield text[begin:end]
        begin = end
