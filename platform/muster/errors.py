"""What can go wrong, as one tree.

    MusterError                     anything Muster raises on purpose; its text is meant for a person
    ├── InvalidSpec                 input that one object shows wrong: field, value, what would be right
    ├── Refused                     input that is well formed but cannot be accepted here and now
    │   ├── NotFound                the named object does not exist
    │   └── Conflict                the object changed meanwhile, or the name is taken
    ├── InvalidTrace                a workload or profiler trace that cannot be read
    └── ClusterError                a cluster that cannot be reached or does not answer
        └── DaemonError             the daemon on this host: not running, another version, cannot start
"Cannot place" is no error: it is a `Wait` decision of the planner.
"""

from __future__ import annotations

from collections.abc import Sequence


class MusterError(Exception):
    """Anything Muster raises on purpose. `reason` is one CamelCase word for scripts, the text is for a person.

    `field` is the path of what is wrong, such as `spec.roles[0].replicas` or `--priority`; empty where it is no
    single field. `job` is `namespace/name` of the one job of several that it is about, where that is known.
    """

    reason = "Error"

    def __init__(self, message: str, *, field: str = "", reason: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.job = ""
        if reason is not None:
            self.reason = reason


class InvalidSpec(MusterError):
    """One object shows it wrong."""

    reason = "Invalid"


class Refused(MusterError):
    """Well formed, but not to be had here and now; `reason` is a code such as QueueNotFound."""

    reason = "Refused"


def together(refused: Sequence[Refused]) -> Refused:
    """The first of several, at least one, with the text of all: nobody is to meet them one after another."""
    first = refused[0]
    return type(first)("; also: ".join(map(str, refused)), field=first.field, reason=first.reason)


class NotFound(Refused):
    """The named object does not exist."""

    reason = "NotFound"


class Conflict(Refused):
    """The object changed meanwhile, or the name is taken."""

    reason = "Conflict"


class InvalidTrace(MusterError):
    """A workload or profiler trace that cannot be read; the text names the file and the place in it."""

    reason = "InvalidTrace"


class ClusterError(MusterError):
    """A cluster that cannot be reached or does not answer."""

    reason = "ClusterError"


class DaemonError(ClusterError):
    """The daemon on this host: not running, of another version, or it cannot start."""

    reason = "DaemonError"
