"""The entries of kubeconfig files, decoded with their types: a kubeconfig is written by many tools and by hand.

No error shows a value of a user, because it may be a secret.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from muster.errors import ClusterError, NotFound

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


class ContextEntry(msgspec.Struct):
    """Fields of a context that are read."""

    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class ClusterEntry(msgspec.Struct, rename=lambda name: name.replace("_", "-")):
    """Fields of a cluster that are read."""

    server: str | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None


class UserEntry(msgspec.Struct, rename=lambda name: name.strip("_").replace("_", "-")):
    """Fields of a user that are read. `exec` and `auth-provider` are read by the official client."""

    exec: Any = None
    auth_provider: Any = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    as_: str | None = None
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry that is not decoded yet, so that an invalid one does not matter to other contexts. Its relative paths
    begin at `folder`."""

    fields: Any
    folder: Path

    def decode(self, fields: type[_Fields], label: str) -> _Fields:
        """Raises ValueError without the value, which may be a secret."""
        try:
            return msgspec.convert(self.fields, fields)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$.")
            raise ValueError(": ".join(part for part in (label, path.rstrip("`"), problem) if part)) from error


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Several files merged: the first entry of a name wins."""

    paths: list[Path]
    current: str
    contexts: dict[str, _Entry]
    clusters: dict[str, _Entry]
    users: dict[str, _Entry]

    @classmethod
    def load(cls, paths: list[Path]) -> Kubeconfig:
        read = cls(paths, "", {}, {}, {})
        current = ""
        for path in paths:
            try:
                document = yaml.safe_load(path.read_text()) or {}
                current = current or _string(document.get("current-context") or "", "current-context")
                for kind, into in (("context", read.contexts), ("cluster", read.clusters), ("user", read.users)):
                    for index, entry in enumerate(document.get(f"{kind}s") or ()):
                        name = _string(entry["name"], f"{kind}s[{index}].name")
                        into.setdefault(name, _Entry(entry.get(kind) or {}, path.parent))
            except (
                OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError, RecursionError
            ) as error:  # fmt: skip
                message = f"{path} is not a valid kubeconfig: {_parse_error_text(error)}"
                raise ClusterError(message, reason="InvalidKubeconfig") from error
        return cls(paths, current, read.contexts, read.clusters, read.users)

    def context_name(self, given: str | None) -> str:
        """The name of the given or current context, which exists."""
        name, files = given or self.current, os.pathsep.join(map(str, self.paths))
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            message = f"context {name!r} does not exist in {files}" if name else f"{files} has no current context"
            raise NotFound(f"{message}; existing contexts: {known}", field="--context", reason="ContextNotFound")
        return name

    def context(self, name: str) -> ContextEntry:
        """An existing context. Raises ValueError, as the others do."""
        return self.contexts[name].decode(ContextEntry, "")

    def cluster_of(self, context: ContextEntry) -> tuple[ClusterEntry, Path]:
        """The cluster, and the folder of its relative paths."""
        entry = self.clusters.get(context.cluster or "")
        cluster = entry.decode(ClusterEntry, f"cluster {context.cluster!r}") if entry else ClusterEntry()
        if entry is None or not cluster.server:
            raise ValueError(f"names cluster {context.cluster!r}, which has no server")
        return cluster, entry.folder

    def user_of(self, context: ContextEntry) -> tuple[UserEntry, Path]:
        """The user, and the folder of its relative paths; without any, a user without credentials."""
        if not context.user:
            return UserEntry(), Path()
        if context.user not in self.users:
            raise ValueError(f"names user {context.user!r}, which does not exist")
        entry = self.users[context.user]
        return entry.decode(UserEntry, f"user {context.user!r}"), entry.folder


def _string(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field}: must be a string; got {value!r}")
    return value


def _parse_error_text(error: Exception) -> str:
    """The error without the excerpt of the file that YAML errors show: it may contain a token."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error)
