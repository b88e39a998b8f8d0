"""Names of jobs that are made of other text: of an app of TorchX, of a step of a pipeline."""

from __future__ import annotations

import re

from muster.api.spec import MAX_JOB_NAME


def to_kubernetes_name(text: str, max_length: int = MAX_JOB_NAME) -> str:
    """The text as a Kubernetes name: lower-case letters, digits and single dashes; `job` when nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:max_length].strip("-")
    return name or "job"[:max_length]


def with_suffix(text: str, suffix: str, max_length: int = MAX_JOB_NAME) -> str:
    """A Kubernetes name that ends with `-suffix`, of at most `max_length` characters if suffix and a letter fit."""
    return f"{to_kubernetes_name(text, max(1, max_length - len(suffix) - 1))}-{suffix}"
