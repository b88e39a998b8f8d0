"""Who may talk to the API server: its key for service accounts, the users' tokens, and kubeconfig files."""

from __future__ import annotations

import base64
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ADMIN = "admin"
MASTERS = "system:masters"

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


@dataclass(slots=True)
class Users:
    """Every user with a token of their own. The API server reads the file only when it starts."""

    file: Path
    tokens: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, user: str, groups: Sequence[str] = ()) -> str:
        """Write a user into the file; their token."""
        self.tokens[user] = secrets.token_hex(16)
        self.groups[user] = tuple(groups)
        rows = [f'{self.tokens[name]},{name},{name},"{",".join(self.groups[name])}"\n' for name in self.tokens]
        self.file.write_text("".join(rows))
        self.file.chmod(0o600)
        return self.tokens[user]


def write_key(path: Path) -> None:
    """Write a new private key for service account tokens: ECDSA on P-256.

    The key is any 32 random bytes below the curve's order, and its encoding (RFC 5915) may leave the public point out,
    so this needs no library.
    """
    number = (secrets.randbelow(_ORDER - 1) + 1).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + number + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.encodebytes(der).decode()
    path.write_text(f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n")
    path.chmod(0o600)


def write_kubeconfig(path: Path, server: str, authority: Path, token: str, namespace: str = "default") -> Path:
    """Write a kubeconfig that holds all it needs, so that it can be copied anywhere.

    It replaces one of the same name at once: a program that starts may be reading that one.
    """
    certificate = base64.b64encode(authority.read_bytes()).decode()
    name = "muster-tests"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": certificate}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    handle, unfinished = tempfile.mkstemp(dir=path.parent)  # mode 0600
    with os.fdopen(handle, "w") as file:
        file.write(json.dumps(config, indent=2))
    Path(unfinished).replace(path)
    return path
