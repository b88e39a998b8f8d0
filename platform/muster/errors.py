"""The exceptions that Muster raises.

    MusterError                     base class; the message is for users
    ├── InvalidSpec                 an object is invalid by itself: field, valid values, value
    ├── Refused                     a valid request that cannot be accepted in the present state
    │   ├── NotFound                the named object does not exist
    │   └── Conflict                the object changed meanwhile, or the name is taken
    ├── InvalidTrace                a workload or profiler trace that cannot be read
    └── ClusterError                a cluster that cannot be reached or does not answer
        └── DaemonError             the daemon on this host: another version, cannot start
            └── DaemonUnavailable   not running, or shutting down
A job that cannot be placed is not an error: the planner decides `Wait`.
"""

from __future__ import annotations

from collections.abc import Sequence


def install_extra(extra: str) -> str:
    """How a user installs an optional dependency of Muster, for the end of a message."""
    return f"install the extra {extra} of Muster: pip install '/path/to/muster[{extra}]'"


class MusterError(Exception):
    """Base class. `reason` is one CamelCase word for scripts, the message is for users.

    `field` is the path of the invalid field, such as `spec.roles[0].replicas` or `--priority`; empty if it is not a
    single field. `job` is `namespace/name` of the job concerned, of several; empty if unknown.
    """

    reason = "Error"

    def __init__(self, message: str, *, field: str = "", reason: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.job = ""
        if reason is not None:
            self.reason = reason


class InvalidSpec(MusterError):
    """An object is invalid by itself."""

    reason = "Invalid"


class Refused(MusterError):
    """A valid request that cannot be accepted in the present state; `reason` is a code such as QueueNotFound."""

    reason = "Refused"


def together(refused: Sequence[Refused]) -> Refused:
    """Join errors (at least one) into one: the type, field and reason of the first, the messages of all."""
    first = refused[0]
    return type(first)("; also: ".join(map(str, refused)), field=first.field, reason=first.reason)


class NotFound(Refused):
    """The named object does not exist."""

    reason = "NotFound"


class Conflict(Refused):
    """The object was changed concurrently, or the name is in use."""

    reason = "Conflict"


class InvalidTrace(MusterError):
    """A workload or profiler trace that cannot be read; the message names the file and the place in it."""

    reason = "InvalidTrace"


class ClusterError(MusterError):
    """A cluster that cannot be reached or does not answer."""

    reason = "ClusterError"


class DaemonError(ClusterError):
    """The daemon on this host does not run, has another version, or cannot start."""

    reason = "DaemonError"


class DaemonUnavailable(DaemonError):
    """No daemon listens, or it is shutting down. The request was not processed and can be retried."""

    reason = "NotRunning"
