"""Names of a job's Service and hosts, and its rendezvous port."""

from __future__ import annotations

import hashlib

RENDEZVOUS_PORT = 29500
_HOST_PORTS = (20_000, 30_000)  # below the default ranges of node ports and ephemeral ports


def service_name(job: str, uid: str) -> str:
    """Name of the headless Service of a job; differs from that of a deleted job of the same name."""
    digest = hashlib.sha256(uid.encode()).hexdigest()[:5]
    return f"{'' if job[:1].isalpha() else 'j'}{job}-{digest}"


def host_name(role: str, index: int) -> str:
    """Host name of a pod; the same in every attempt."""
    return f"{role}-{index}"


def rendezvous_port(uid: str, role: str, attempt: int, *, on_host_network: bool) -> int:
    """Rendezvous port of a role's pod 0. On the host network, which pods share, it differs in every attempt."""
    if not on_host_network:
        return RENDEZVOUS_PORT
    first, end = _HOST_PORTS
    digest = hashlib.sha256(f"{uid}/{role}/{attempt}".encode()).digest()
    return first + int.from_bytes(digest[:4], "big") % (end - first)
