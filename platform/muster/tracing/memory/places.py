"""Names the place of a stack: the line of the program that allocates, the node of autograd, or the optimizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from muster.tracing.memory.snapshot import Frame, MemorySnapshot

MAX_FRAMES: Final = 40
"""Frames of a stack that are kept in results, the innermost."""
_AUTOGRAD_NODE: Final = re.compile(r"torch::autograd::generated::(\w+)::apply")
_OMITTED_NAMES: Final = re.compile(
    r"unwind::unwind|CapturedTraceback::gather|gather_with_cpp|_start|__libc_start_main|PyEval_|PyObject_|PyFunction_"
)
_OMITTED_FILES: Final = re.compile(
    r"core/boxing|/Register|/Redispatch|pythonrun\.c|Modules/main\.c|Objects/call\.c|Objects/methodobject\.c"
    r"|pycore_ceval\.h|ceval\.c|cpython/abstract\.h"
)
_LIBRARY: Final = re.compile(
    r"(site|dist)-packages/(torch|torchgen|triton)/|/lib/python3[.\d]*/(?!site-packages|dist-packages)|^<"
    r"|(^|/)torch/(nn|optim|autograd|utils|distributed|cuda|fx|profiler|_\w+)[/.]"  # torch built from its source
)
_GENERATED: Final = re.compile(r"/c[a-z2-7]{51}\.py$")  # by Inductor; the next frames are the lines that it was made of


class Places:
    """The place and the frames of each stack of a snapshot, computed once per stack."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self._snapshot = snapshot
        self._names: dict[int, str] = {}
        self._frames: dict[int, tuple[str, ...]] = {}

    def name(self, stack: int) -> str:
        """Such as `model.py:42 forward`; empty for the stack without frames."""
        known = self._names.get(stack)
        if known is None:
            known = self._names[stack] = place_name(self._of(stack))
        return known

    def frames(self, stack: int) -> tuple[str, ...]:
        """The frames as `file:line:function`, innermost first, without those that torch's own views leave out."""
        known = self._frames.get(stack)
        if known is None:
            shown = [_text(frame) for frame in self._of(stack) if is_shown(frame)]
            known = self._frames[stack] = tuple(shown[:MAX_FRAMES])
        return known

    def program_frames(self, stack: int) -> tuple[str, ...]:
        """The lines of Python outside torch and the standard library, as `frames`."""
        return tuple(_text(frame) for frame in self._of(stack) if _is_program(frame))[:MAX_FRAMES]

    def _of(self, stack: int) -> list[Frame]:
        return [self._snapshot.frames[frame] for frame in self._snapshot.stacks[stack]]


def is_shown(frame: Frame) -> bool:
    """Whether torch's views show this frame; they omit the interpreter's and the dispatcher's own."""
    return not _OMITTED_NAMES.search(frame.name) and not _OMITTED_FILES.search(frame.file)


def place_name(frames: Sequence[Frame]) -> str:
    """The innermost line of Python outside torch and the standard library; for the optimizer and autograd also which
    part of them allocates. Falls back to the innermost frame."""
    python = [frame for frame in frames if _is_python(frame)]
    own = next((frame for frame in python if _is_program(frame)), None)
    node = next((match[1] for frame in frames if (match := _AUTOGRAD_NODE.search(frame.name))), "")
    inner = next((frame for frame in python if "torch/optim/" in frame.file), None)
    if inner is not None:
        return f"optimizer ({_line(inner)})"
    if node or any("torch::autograd::Engine::" in frame.name for frame in frames):
        inside = f"{node}, {_line(own)}" if own is not None and node else node or (_line(own) if own else "")
        return f"backward ({inside})" if inside else "backward"
    if own is not None:
        return _line(own)
    shown = python or [frame for frame in frames if is_shown(frame)]
    return _line(shown[0]) if shown else ""


def _is_python(frame: Frame) -> bool:
    return "::" not in frame.name and "(" not in frame.name and frame.line > 0 and frame.file.endswith(".py")


def _is_program(frame: Frame) -> bool:
    return _is_python(frame) and not _LIBRARY.search(frame.file) and not _GENERATED.search(frame.file)


def _text(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}:{frame.name}"


def _line(frame: Frame) -> str:
    if not _is_python(frame):
        return frame.name.split("(")[0][:80]
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} {frame.name}"
