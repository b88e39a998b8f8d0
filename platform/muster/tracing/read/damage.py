"""What is wrong with the text of a trace, and what can be read of it nevertheless.

Kineto has written names with unescaped backslashes and quotes, and a job that is killed leaves a file that ends in the
middle. An event that is not valid JSON is repaired if its name is what is wrong, else left out and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

MAX_DAMAGED_EVENTS = 10_000
MAX_EVENTS_OF_DAMAGE = 64
"""Events that are looked at for the end of one damaged place."""
EVENT_BOUNDARY = re.compile(rb"\}\s*(?=,\s*\{)")
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\)')  # the group: not a valid one
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|bp|s)"\s*:|\}))', re.DOTALL)
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
SYNTAX = msgspec.json.Decoder(msgspec.Raw)


@dataclass(slots=True)
class Damage:
    """What is lost of a trace: `events` that cannot be decoded, the first at byte `first_byte` of the text, where
    `problem` is wrong; `end` is why the file ends before the events do, empty for a complete one; `after` is what is
    wrong after the events, where the rank may be."""

    events: int = 0
    first_byte: int = 0
    problem: str = ""
    end: str = ""
    after: str = ""

    def __bool__(self) -> bool:
        return bool(self.events or self.end or self.after)

    def describe(self) -> str:
        """What is lost and why: `2 events left out: damaged at byte 512: invalid character`."""
        count = f"{self.events:,} event{'s' if self.events > 1 else ''} left out"
        damaged = f"{count}: damaged at byte {self.first_byte}: {self.problem}" if self.events else ""
        return "; ".join(part for part in (self.end, self.after, damaged) if part)


def syntax_error(text: bytes) -> tuple[int, str] | None:
    """The byte at which a text stops being JSON, and what is wrong there; None if it is only incomplete, or valid."""
    try:
        SYNTAX.decode(text)
    except msgspec.MsgspecError as error:
        found = re.search(r"\(byte (\d+)\)", str(error))
        return (int(found[1]), plain_message(str(error))) if found else None
    return None


def plain_message(message: str) -> str:
    """A message of the JSON decoder without the byte."""
    return re.sub(r"\s*\(byte \d+\)", "", message)


def escape_backslashes(text: bytes) -> bytes:
    """The text with the backslashes escaped of each string in which one does not begin a valid escape."""
    if b"\\" not in text or not any(match[1] for match in _ESCAPE.finditer(text)):
        return text
    return _STRING.sub(_escaped, text)


def _escaped(string: re.Match[bytes]) -> bytes:
    if b"\\" not in string[0] or not any(match[1] for match in _ESCAPE.finditer(string[0])):
        return string[0]
    return re.sub(rb'\\(?!")', rb"\\\\", string[0])


def repair_event(text: bytes) -> bytes:
    """The text of an event with the backslashes and quotes in its name escaped."""

    def escaped(match: re.Match[bytes]) -> bytes:
        inner = match[2]
        # A last backslash would escape the quote that ends the name.
        odd = (len(inner) - len(inner.rstrip(b"\\"))) % 2
        if odd or any(escape[1] for escape in _ESCAPE.finditer(inner)):
            inner = inner.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        else:
            inner = _QUOTE.sub(lambda one: b'\\"' if one[0] == b'"' else one[0], inner)
        return match[1] + inner + match[3]

    return escape_backslashes(_NAME.sub(escaped, text, count=1))
