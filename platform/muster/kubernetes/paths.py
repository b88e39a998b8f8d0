"""Addresses of what the client reads and writes (pure)."""

from __future__ import annotations

from urllib.parse import quote

PLURALS = {"TrainingJob": "trainingjobs", "Queue": "queues", "Flavor": "flavors"}
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
GROUP = "/apis/muster.dev/v1alpha1"


def collection(kind: str, namespace: str | None = None) -> str:
    """All objects of one of our kinds, in one namespace or in all."""
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None and kind == "TrainingJob" else ""
    return f"{GROUP}{inside}/{PLURALS[kind]}"


def one(kind: str, name: str, namespace: str | None = None) -> str:
    """One object of one of our kinds."""
    return f"{collection(kind, namespace)}/{quote(name, safe='')}"


def node(name: str) -> str:
    """One node."""
    return f"{NODES}/{quote(name, safe='')}"


def core(namespace: str, plural: str, name: str = "", sub: str = "") -> str:
    """Something of the core group in a namespace: its pods, a pod, the log of a pod."""
    parts = [NAMESPACES, namespace, plural, *([name] if name else []), *([sub] if sub else [])]
    return "/".join([parts[0], *(quote(part, safe="") for part in parts[1:])])
