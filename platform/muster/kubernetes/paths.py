"""Addresses of what the client reads and writes (pure)."""

from __future__ import annotations

from urllib.parse import quote

PLURALS = {"TrainingJob": "trainingjobs", "Queue": "queues", "Flavor": "flavors"}
NODES_PATH = "/api/v1/nodes"
NAMESPACES_PATH = "/api/v1/namespaces"
PRIORITY_CLASSES_PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
MUSTER_API_PATH = "/apis/muster.dev/v1alpha1"


def collection_path(kind: str, namespace: str | None = None) -> str:
    """All objects of one of our kinds, in one namespace or in all."""
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None and kind == "TrainingJob" else ""
    return f"{MUSTER_API_PATH}{inside}/{PLURALS[kind]}"


def object_path(kind: str, name: str, namespace: str | None = None) -> str:
    """One object of one of our kinds."""
    return f"{collection_path(kind, namespace)}/{quote(name, safe='')}"


def node_path(name: str) -> str:
    """One node."""
    return f"{NODES_PATH}/{quote(name, safe='')}"


def core_path(namespace: str, plural: str, name: str = "", sub: str = "") -> str:
    """Something of the core group in a namespace: its pods, a pod, the log of a pod."""
    parts = [NAMESPACES_PATH, namespace, plural, *([name] if name else []), *([sub] if sub else [])]
    return "/".join([parts[0], *(quote(part, safe="") for part in parts[1:])])
