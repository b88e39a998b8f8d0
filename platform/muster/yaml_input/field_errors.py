"""Pydantic's findings in the words of someone who has to mend the file: field, value, what would be right."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from muster.spec.fields import LABEL_KEY, LABEL_SYNTAX, LABEL_VALUE
from muster.yaml_input.source_map import Path, SourceMap

_TYPE_NAMES = {
    "string": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list",
    "dict": "a mapping", "model": "a mapping",
}  # fmt: skip
_NAME_SYNTAX = "lower-case letters, digits and '-' that starts and ends with a letter or digit"

_EXAMPLES: dict[str | int, str] = {"trace": "{startStep: 20, steps: 5}", "env": "[{name: A, value: b}]"}
"""How fields look that are easily taken for something simpler."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong at one line of a document."""

    path: Path
    line: int
    message: str

    @property
    def field(self) -> str:
        """The path as people write it: `spec.roles[0].replicas`."""
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
    """What `field_path` made of a path, as a path again; keys in brackets included."""
    parts = re.findall(r'\["([^"]*)"\]|\[([0-9]+)\]|([^.\[\]]+)', text)
    return tuple(int(index) if index else key or name for key, index, name in parts)


def format_value(value: Any) -> str:
    """A value as the user may have written it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}...{text[0] if text[0] in chr(34) + chr(39) else ''}"


def to_field_error(finding: Any, document: SourceMap) -> FieldError:
    """A complaint for one entry of `ValidationError.errors()`."""
    path: Path = tuple(part for part in finding["loc"])
    value = finding["input"]
    message = _message(finding["type"], value, finding.get("ctx") or {}, finding["msg"])
    if finding["type"].endswith("_type") and path and path[-1] in _EXAMPLES:
        message = f"{message}, such as {_EXAMPLES[path[-1]]}"
    field, _, rest = message.partition(": ")
    if path and field == path[-1]:  # of several that a validator found together, each begins with its field
        message = rest
    elif isinstance(value, dict) and field in value:
        path, message = (*path, field), rest
    return FieldError(path, document.line(path), message)


def _message(kind: str, value: Any, context: dict[str, Any], text: str) -> str:
    message = format_value(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{message} must be a finite number"
    if kind == "missing":
        return "missing; write it"
    if kind == "none_required":
        return f"{message} is not allowed: Muster sets it; leave the field out"
    if kind == "literal_error":
        return f"{message} is not known; write {context.get('expected', '')}"
    if kind in ("greater_than_equal", "greater_than"):
        bound = context.get("ge", context.get("gt"))
        return (
            f"{message} is too small; write {_number(bound)} or more"
            if "ge" in context
            else f"{message} is too small; write more than {_number(bound)}"
        )
    if kind in ("less_than_equal", "less_than"):
        return f"{message} is too large; write {_number(context.get('le', context.get('lt')))} or less"
    if kind == "string_pattern_mismatch" and context.get("pattern", "").endswith(LABEL_KEY):
        return f"must be {LABEL_SYNTAX}; got {message}"
    if kind == "string_pattern_mismatch" and context.get("pattern") == LABEL_VALUE:
        return f"must be a label's value: at most 63 letters, digits, '-', '_' and '.'; got {message}"
    if kind == "string_pattern_mismatch":
        return f"{message} must be a name of {_NAME_SYNTAX}"
    if kind == "string_too_long":
        return f"{message} has {len(value)} characters; write at most {context.get('max_length')}"
    if kind == "string_too_short":
        return f"{message} is empty; write a name"
    if kind == "too_short":
        return f"is empty; write at least {context.get('min_length')}"
    if kind == "too_long":
        return f"has {context.get('actual_length')} entries; write at most {context.get('max_length')}"
    if kind.endswith(("_type", "_parsing", "_from_float")):
        wanted = _TYPE_NAMES.get(kind.split("_")[0], kind.split("_")[0])
        if value is None:
            return f"is empty; write {wanted}"
        quotes = ", in quotes" if wanted == "text" and isinstance(value, bool | int | float) else ""
        return f"{message} is not {wanted}; write {wanted}{quotes}"
    return text.removeprefix("Value error, ")


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
