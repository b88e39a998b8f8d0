"""Parsers of option values such as `block:rack` and `0,3`, and conversion to Kubernetes names.

Each parser returns a value of `muster.spec`, or raises ValueError with the valid form.
"""

from __future__ import annotations

import json
import re

from muster.env_vars import is_valid_name
from muster.spec import MAX_JOB_NAME

MAX_NAME_LENGTH = MAX_JOB_NAME


def parse_int(text: str) -> int:
    """An integer, possibly negative."""
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError("must be an integer such as 0 or 100")
    return int(text)


def parse_replica_count(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("must be a positive number of pods such as 2")
    return int(text)


def parse_bool(text: str) -> bool:
    """`true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_list(text: str) -> list[str]:
    """`a,b` or `a;b`, or a JSON list of texts."""
    if text.lstrip().startswith("["):
        entries = parse_json_list(text)
        if not all(isinstance(entry, str) for entry in entries):
            raise ValueError("must contain only strings, such as h200,a100")
        return [str(entry) for entry in entries]
    return [entry.strip() for entry in re.split("[,;]", text) if entry.strip()]


def parse_env_names(text: str) -> list[str]:
    """Names of environment variables, as `A;B`."""
    names = parse_list(text)
    for name in names:
        if not is_valid_name(name):
            raise ValueError("must be names of environment variables such as A;B; set values in the component's env")
    return names


def parse_json_list(text: str) -> list[object]:
    """A JSON list."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a JSON list such as [] ({error})") from None
    if not isinstance(value, list):
        raise ValueError("must be a JSON list such as []")
    return value


def parse_topology(text: str) -> dict[str, str]:
    """`block` requires one domain of that level, `:rack` prefers one, `block:rack` does both."""
    required, _, preferred = (part.strip() for part in text.partition(":"))
    if ":" in preferred or not (required or preferred):
        raise ValueError("must be REQUIRED, :PREFERRED or REQUIRED:PREFERRED, such as block:rack")
    return {key: level for key, level in (("required", required), ("preferred", preferred)) if level}


def parse_ranks(text: str) -> list[int]:
    """`0,3`; empty means all."""
    parts = parse_list(text)
    if not all(part.isdecimal() for part in parts):
        raise ValueError("must be a list of ranks such as 0,3, or empty for all")
    return sorted({int(part) for part in parts})


def to_kubernetes_name(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """The text as a Kubernetes name: lower-case letters, digits and single dashes; `job` when nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:max_length].strip("-")
    return name or "job"[:max_length]


def with_suffix(text: str, suffix: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """A Kubernetes name that ends with `-suffix`, of at most `max_length` characters if suffix and a letter fit."""
    return f"{to_kubernetes_name(text, max(1, max_length - len(suffix) - 1))}-{suffix}"
