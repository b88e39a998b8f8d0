"""Names of a job's Service and hosts, and the port at which its ranks meet."""

from __future__ import annotations

import hashlib

RENDEZVOUS_PORT = 29500
_HOST_PORTS = (20_000, 30_000)  # below the usual range of node ports and of ports for outgoing connections


def service_name(job: str, uid: str) -> str:
    """The headless Service of a job: a name of its own even when a job of that name has just been deleted."""
    digest = hashlib.sha256(uid.encode()).hexdigest()[:5]
    return f"{'' if job[:1].isalpha() else 'j'}{job}-{digest}"


def host_name(role: str, index: int) -> str:
    """The same in every attempt."""
    return f"{role}-{index}"


def rendezvous_port(uid: str, role: str, attempt: int, *, on_host_network: bool) -> int:
    """Where pod 0 of a role is met. On the network of the host, which others use too, another one in every attempt."""
    if not on_host_network:
        return RENDEZVOUS_PORT
    first, end = _HOST_PORTS
    digest = hashlib.sha256(f"{uid}/{role}/{attempt}".encode()).digest()
    return first + int.from_bytes(digest[:4], "big") % (end - first)
