"""Stacks of ranks without a handler, by py-spy, where it is installed and may read their memory (ptrace)."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

_THREAD = re.compile(r"Thread .*?(?:: \"(?P<name>.*)\")?$")
_FRAME = re.compile(r"^    (?P<frame>\S.* \(.*\))$")
_MAX_ERROR = 200
_IGNORED = re.compile(r"Caused by:|Stack backtrace:|Error: ?")


@dataclass(frozen=True, slots=True)
class SpyDump:
    """The text of py-spy, or in `reason` why there is none."""

    text: str = ""
    reason: str = ""

    def main_frames(self, most: int) -> tuple[str, ...]:
        """The frames of the main thread, innermost first, as `name (file:line)`."""
        threads: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if thread := _THREAD.match(line):
                threads.append((thread["name"] or "", []))
            elif threads and (found := _FRAME.match(line)):
                threads[-1][1].append(found["frame"])
        # A process that has not imported threading has no names, and one thread of Python.
        main = [frames for name, frames in threads if name == "MainThread" or len(threads) == 1]
        return tuple(main[0][:most]) if main else ()


def spy_dump(pid: int, timeout_s: float) -> SpyDump:
    """The stacks of all threads of a process; py-spy stops it for some milliseconds."""
    program = shutil.which("py-spy")
    if program is None:
        return SpyDump(reason="py-spy is not installed")
    command = [program, "dump", "--full-filenames", "--pid", str(pid)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return SpyDump(reason=f"py-spy did not end within {timeout_s:.3g} s")
    except OSError as error:
        return SpyDump(reason=f"py-spy cannot be started: {error.strerror or error}")
    if ended.returncode:
        errors = (_IGNORED.sub("", line).strip() for line in ended.stderr.decode(errors="replace").splitlines())
        return SpyDump(reason=f"py-spy: {next(filter(None, errors), 'failed')[:_MAX_ERROR]}")
    return SpyDump(ended.stdout.decode(errors="replace"))
