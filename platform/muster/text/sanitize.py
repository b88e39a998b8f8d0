"""Text that others wrote, as a terminal may be given it: messages of a cluster, the end of a job's log, its lines.

A terminal obeys what is printed: escape sequences move the cursor, rename the window, write the clipboard (OSC 52), ask
for answers that arrive as typed text. So whoever writes a log could act in the terminal of whoever reads it.
"""

from __future__ import annotations

import re

_SGR_SEQUENCE = r"\x1b\[[0-9;:]*m"  # SGR: how what follows looks
_STRING_SEQUENCE = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\n]*?(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC, to their ends
)
_CSI_SEQUENCE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
_OTHER_ESCAPE = r"\x1b[ -/]*[0-Z\\^-~]"  # all others that are whole
_CONTROL_CHARACTER = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_UNSAFE = re.compile(
    rf"(?P<colour>{_SGR_SEQUENCE})|{_STRING_SEQUENCE}|{_CSI_SEQUENCE}|{_OTHER_ESCAPE}|{_CONTROL_CHARACTER}"
)


def sanitize(text: str) -> str:
    """The text without escape sequences, control characters (but for ends of lines and tabs) and marks that reverse the
    direction of writing. Of a line that was overwritten after a carriage return, what was written last."""
    return text if text.isprintable() else _apply_carriage_returns(_UNSAFE.sub("", text))


def sanitize_keep_colors(line: str) -> str:
    """The same, but colours and weights stay, and end with the line."""
    if line.isprintable():
        return line
    kept = _apply_carriage_returns(_UNSAFE.sub(lambda found: found["colour"] or "", line))
    return f"{kept}\x1b[0m" if "\x1b" in kept else kept


def _apply_carriage_returns(text: str) -> str:
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
