"""Requests to the API server and its error responses, the same for both clients (pure)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError, Conflict, InvalidSpec, MusterError, NotFound, Refused

APPLICATION_JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
DRY_RUN = {"dryRun": "All"}
"""Query parameters of a server-side dry run."""
STRICT_FIELD_VALIDATION = {"fieldValidation": "Strict"}
"""Query parameters of a write that refuses unknown fields."""
RETRY_CODES = frozenset({429, 503})
"""The request was not processed; `retry_delay_s` is the time to wait."""
MAX_ATTEMPTS = 5
"""Attempts of a request that is answered with one of `RETRY_CODES`."""
_MAX_RETRY_DELAY_S = 10.0
_MAX_TEXT = 300  # bytes of an answer that is no Status, for example of a proxy


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the API server, as both clients send it."""

    verb: str
    path: str
    body: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = APPLICATION_JSON
    accept: str = APPLICATION_JSON

    @property
    def url(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def is_dry_run(self) -> bool:
        return "dryRun" in self.query

    @property
    def is_write(self) -> bool:
        return self.verb != "GET" and not self.is_dry_run

    def headers(self, login: Mapping[str, str], impersonation: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Its headers; a name may be repeated."""
        content = () if self.body is None else (("Content-Type", self.content_type),)
        return [("Accept", self.accept), *login.items(), *impersonation, *content]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one attempt of a request."""

    code: int
    body: bytes
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        return 200 <= self.code < 300

    def pause_s(self, attempt: int, attempts: int = MAX_ATTEMPTS) -> float | None:
        """Seconds until the next attempt after this one, of `attempts`; None if this is the last."""
        if self.code not in RETRY_CODES or attempt >= attempts:
            return None
        return retry_delay_s(self.retry_after)


class V1StatusCause(msgspec.Struct):
    """One cause of a refused request."""

    field: str = ""
    message: str = ""


class V1StatusDetails(msgspec.Struct):
    """What a refused request concerned."""

    name: str = ""
    causes: list[V1StatusCause] | None = None


class V1Status(msgspec.Struct):
    """The body of an error response."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: V1StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(V1Status)


def read_status(answer: bytes) -> V1Status:
    """The Status in an error response; of any other body its first characters as message."""
    try:
        return decode_truncated(_status_decoder.decode, answer)
    except ValueError:
        return V1Status(message=answer[:_MAX_TEXT].decode(errors="replace").strip())


def user_error(code: int, answer: bytes, method: str, path: str) -> MusterError:
    """The error that a user sees for an error response."""
    status = read_status(answer)
    reason, message = status.reason or "ApiError", status.message or status.reason or f"code {code}"
    if code == 401:
        text = "the API server returned 401 Unauthorized: the kubeconfig's credentials are invalid or have expired"
        return ClusterError(text, reason="Unauthorized")
    if code == 404 and not (status.details and status.details.name) and "/muster.dev/" in path:
        text = "the cluster does not serve TrainingJobs: Muster is not installed there (docs/tasks/kubernetes.md)"
        return ClusterError(text, reason="NotInstalled")
    if code == 404:
        return NotFound(message, reason=status.reason or None)
    if code == 409:
        return Conflict(message, reason=reason)
    if code in (400, 422):
        return _invalid_spec(status, message)
    if code == 403:
        return Refused(message, reason=reason)
    return ClusterError(f"{method} {path}: {message} ({code})", reason=reason)


def _invalid_spec(status: V1Status, message: str) -> InvalidSpec:
    """All causes with their fields, without the prefix that names the object."""
    causes = [cause for cause in (status.details and status.details.causes) or () if cause.message]
    if not causes:
        return InvalidSpec(message)
    text = "; ".join(f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes)
    return InvalidSpec(text, field=causes[0].field)


def retry_delay_s(retry_after: str | None) -> float:
    """Seconds to wait before the next attempt, from the header Retry-After."""
    try:
        return min(_MAX_RETRY_DELAY_S, max(0.1, float(retry_after or "1")))
    except ValueError:
        return 1.0


def uid_precondition(uid: str) -> dict[str, Any]:
    """DeleteOptions with the object's uid, so that no other object of the same name is deleted. The server ignores
    query parameters if a body is sent."""
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
