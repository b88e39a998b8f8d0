"""Messages for pydantic's validation errors: field, what is valid, and the value that was found."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from muster.api.spec.fields import LABEL_KEY, LABEL_SYNTAX, LABEL_VALUE
from muster.api.yaml_input.source_map import Path, SourceMap

_TYPE_NAMES = {
    "string": "a string", "int": "an integer", "float": "a number", "bool": "true or false", "list": "a list",
    "dict": "a mapping", "model": "a mapping",
}  # fmt: skip
_NAME_SYNTAX = "lower-case letters, digits and '-', and start and end with a letter or digit"

_EXAMPLES: dict[str | int, str] = {"trace": "{startStep: 20, steps: 5}", "env": "[{name: A, value: b}]"}
"""Examples for fields that users often write as a scalar."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error at one line of a document."""

    path: Path
    line: int
    message: str

    @property
    def field(self) -> str:
        return field_path(self.path)


def field_path(path: Path) -> str:
    """`("spec", "roles", 0)` as `spec.roles[0]`; a key with dots goes in brackets: `limits["nvidia.com/gpu"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part or "/" in part:
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def parse_field_path(text: str) -> Path:
    """The inverse of `field_path`."""
    parts = re.findall(r'\["([^"]*)"\]|\[([0-9]+)\]|([^.\[\]]+)', text)
    return tuple(int(index) if index else key or name for key, index, name in parts)


def format_value(value: Any) -> str:
    """A value as YAML shows it, at most 60 characters; a mapping or list by its type only."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}...{text[0] if text[0] in chr(34) + chr(39) else ''}"


def to_field_error(finding: Any, document: SourceMap) -> FieldError:
    """Convert one entry of `ValidationError.errors()`."""
    path: Path = tuple(part for part in finding["loc"])
    value = finding["input"]
    message = _message(finding["type"], value, finding.get("ctx") or {}, finding["msg"])
    if finding["type"].endswith("_type") and path and path[-1] in _EXAMPLES:
        message = f"{message}; for example {_EXAMPLES[path[-1]]}"
    field, _, rest = message.partition(": ")
    if path and field == path[-1]:  # raised by `raise_invalid_fields`: the message begins with its field
        message = rest
    elif isinstance(value, dict) and field in value:
        path, message = (*path, field), rest
    return FieldError(path, document.line(path), message)


def _message(kind: str, value: Any, context: dict[str, Any], text: str) -> str:
    got = format_value(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number; got {got}"
    if kind == "missing":
        return "is required"
    if kind == "none_required":
        return f"must not be set, because Muster sets it; got {got}"
    if kind == "literal_error":
        return f"must be {context.get('expected', '')}; got {got}"
    if kind == "greater_than_equal":
        return f"must be at least {_number(context['ge'])}; got {got}"
    if kind == "greater_than":
        return f"must be greater than {_number(context['gt'])}; got {got}"
    if kind == "less_than_equal":
        return f"must be at most {_number(context['le'])}; got {got}"
    if kind == "less_than":
        return f"must be less than {_number(context['lt'])}; got {got}"
    if kind == "string_pattern_mismatch" and context.get("pattern", "").endswith(LABEL_KEY):
        return f"must be {LABEL_SYNTAX}; got {got}"
    if kind == "string_pattern_mismatch" and context.get("pattern") == LABEL_VALUE:
        return f"must be a label value: at most 63 letters, digits, '-', '_' and '.'; got {got}"
    if kind == "string_pattern_mismatch":
        return f"must consist of {_NAME_SYNTAX}; got {got}"
    if kind == "string_too_long":
        return f"must have at most {context.get('max_length')} characters; got {len(value)}"
    if kind in ("string_too_short", "too_short"):  # every minimum is 1
        return "must not be empty"
    if kind == "too_long":
        return f"must have at most {context.get('max_length')} entries; got {context.get('actual_length')}"
    if kind.endswith(("_type", "_parsing", "_from_float")):
        expected = _TYPE_NAMES.get(kind.split("_")[0], kind.split("_")[0])
        quotes = " without quotes" if expected == "a string" and isinstance(value, bool | int | float) else ""
        return f"must be {expected}; got {got}{quotes}"
    return text.removeprefix("Value error, ")


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
