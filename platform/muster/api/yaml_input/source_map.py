"""YAML text to plain values with the line of each.

PyYAML alone would accept duplicate keys, read `20:25` as the number 1225, and expand nine aliases to a billion values.
So size and depth are limited before values are built, and the values are built here: duplicate keys are refused, and
an alias counts as many values as it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from muster.api.spec.limits import MAX_DEPTH
from muster.errors import InvalidSpec

MAX_BYTES = 4 * 2**20
MAX_DOCUMENTS = 1000
MAX_VALUES = 400_000  # of all documents of a text together
_MAX_DIGITS = 100  # of a number: Python converts at most 4300
_MAX_MESSAGE_LENGTH = 1000  # of one error

Path: TypeAlias = tuple[str | int, ...]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class SourceMap:
    """One document as plain values (dict, list, str, int, float, bool, None), and the line of every path in it."""

    value: Any
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """The line of `path`, counted from 1, or of its nearest existing ancestor."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse_yaml(text: str | bytes, source: str) -> list[SourceMap]:
    """The documents of a text. Raises `InvalidSpec` (MalformedYaml, TooLarge) with source, line and column."""
    text = _decoded(text, source) if isinstance(text, bytes) else text
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidSpec(f"{source}: must have at most {MAX_BYTES} bytes; split it", reason="TooLarge")
    try:
        _check_bounds(text, source)
        located: list[SourceMap] = []
        left = MAX_VALUES
        for node in yaml.compose_all(text, Loader=_Loader):
            builder = _Builder(source, left)
            located.append(SourceMap(builder.build(node, ()), builder.lines))
            left = builder.remaining
        return located
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        message = f"{where}: malformed YAML: {_yaml_error_text(error, mark)}{_tab_hint(text, mark)}"
        raise InvalidSpec(message, reason="MalformedYaml") from error
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        message = f"{source}:{line}:{column}: malformed YAML: {error.reason}"
        raise InvalidSpec(message, reason="MalformedYaml") from error


def shorten_message(message: str) -> str:
    """The message, cut to 1000 characters: it may contain a value of megabytes."""
    return message if len(message) <= _MAX_MESSAGE_LENGTH else f"{message[: _MAX_MESSAGE_LENGTH - 3]}..."


def _decoded(text: bytes, source: str) -> str:
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = text.rfind(b"\n", 0, error.start) + 1
        line = text.count(b"\n", 0, error.start) + 1
        where = f"{source}:{line}:{error.start - start + 1}"
        message = f"{where}: the byte 0x{text[error.start]:02x} is not UTF-8; save the file as UTF-8 text"
        raise InvalidSpec(message, reason="MalformedYaml") from error


def _yaml_error_text(error: yaml.MarkedYAMLError, mark: Any) -> str:
    """PyYAML's error, and the line at which the unfinished element began."""
    began = error.context_mark
    context = f" {error.context}" if error.context else ""
    if context and began is not None and mark is not None and began.line != mark.line:
        context += f" that begins at line {began.line + 1}"
    return f"{error.problem or 'cannot be read'}{context}"


def _tab_hint(text: str, mark: Any) -> str:
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
        return "; the line is indented with a tab: YAML requires spaces"
    return ""


def _check_bounds(text: str, source: str) -> None:
    """Check depth and number of documents before values are built."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > MAX_DOCUMENTS:
                line = event.start_mark.line + 1 if event.start_mark else 1
                message = f"{source}:{line}: must have at most {MAX_DOCUMENTS} documents; split it"
                raise InvalidSpec(message, reason="TooLarge")
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 1
                message = f"{source}:{line}: must be nested at most {MAX_DEPTH} levels deep"
                raise InvalidSpec(message, reason="TooLarge")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Builder:
    """Builds the values of one document and the lines of their paths, at most `left` values."""

    def __init__(self, source: str, left: int) -> None:
        self.source = source
        self.remaining = left
        self.lines: dict[Path, int] = {}
        self.scalars = yaml.constructor.SafeConstructor()
        self.ancestors: set[int] = set()  # ids of nodes being built, to detect an alias cycle

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.count_values(node, 1)
        if id(node) in self.ancestors:
            raise self.error(node, "an alias must not refer to a node that contains it")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if node.tag not in (f"{_YAML_TAG}seq", f"{_YAML_TAG}map"):
            raise self.error(node, f"the tag {node.tag!r} is not allowed; write plain YAML")
        self.ancestors.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            value: Any = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            value = self.mapping(node, path)
        self.ancestors.discard(id(node))
        return value

    def count_values(self, node: yaml.Node, values: int) -> None:
        """Count values that are built. Raises `InvalidSpec` TooLarge above the limit."""
        self.remaining -= values
        if self.remaining < 0:
            message = f"aliases expand to more than {MAX_VALUES} values; write fewer of them"
            raise self.error(node, message, reason="TooLarge")

    def scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_YAML_TAG)
        if kind in ("str", "timestamp") or (kind in ("int", "float") and ":" in node.value):
            return node.value  # YAML 1.1 would read 20:25 as a base 60 number
        if kind not in ("int", "float", "bool", "null"):
            raise self.error(node, f"the tag {node.tag!r} is not allowed; write plain YAML")
        if kind == "int" and len(node.value) > _MAX_DIGITS:
            message = f"a number must have at most {_MAX_DIGITS} characters; got {len(node.value)}"
            raise self.error(node, message)
        try:
            return self.scalars.construct_object(node)
        except ValueError as error:
            raise self.error(node, f"{node.value!r} cannot be read as {kind}; write it in quotes") from error

    def mapping(self, node: Any, path: Path) -> dict[str, Any]:
        value: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_YAML_TAG}merge":
                for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    merged = {**self.merged(part, path), **merged}
                    self.count_values(node, len(merged))  # each merge copies all
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error(key_node, "a key must be a scalar, not a list or a mapping")
            key = key_node.value
            if key in value:
                first = self.lines[(*path, key)]
                raise self.error(key_node, f"the key {key!r} is already at line {first}; keep one of them")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            value[key] = self.build(value_node, (*path, key))
        return {**merged, **value}

    def merged(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found = self.build(node, path)
        if not isinstance(found, dict):
            raise self.error(node, "'<<' merges mappings only")
        return found

    def error(self, node: yaml.Node, message: str, reason: str = "MalformedYaml") -> InvalidSpec:
        mark = node.start_mark
        return InvalidSpec(
            f"{self.source}:{mark.line + 1}:{mark.column + 1}: {shorten_message(message)}", reason=reason
        )
