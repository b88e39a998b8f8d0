"""Progress lines on rank 0's standard output.

    step 20/60  loss 2.31  12,345 tok/s  0.52 s/step  ETA 21s

`MFU 48.8%` follows if the device's peak is known, and `peak 50.3 GiB` on a GPU.
"""

from __future__ import annotations

import contextlib

GIB = 1024**3


def progress_line(
    *,
    step: int,
    steps: int,
    loss: float,
    tokens_per_s: float,
    step_time_s: float,
    eta_s: float,
    mfu: float | None = None,
    peak_memory_bytes: int | None = None,
) -> str:
    """One line; `peak_memory_bytes` is given on GPUs only."""
    parts = [
        f"step {step}/{steps}",
        f"loss {loss:.2f}",
        f"{tokens_per_s:,.0f} tok/s",
        f"{step_time_s:.2f} s/step" if step_time_s >= 0.1 else f"{step_time_s * 1000:.1f} ms/step",
        f"ETA {format_duration(eta_s)}",
    ]
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    if peak_memory_bytes is not None:
        parts.append(f"peak {peak_memory_bytes / GIB:.1f} GiB")
    return "  ".join(parts)


def first_step_line(*, step: int, steps: int, loss: float, step_time_s: float) -> str:
    """The line of an attempt's first step, without speed and ETA, since it includes compilation."""
    return f"step {step}/{steps}  loss {loss:.2f}  first step {step_time_s:.1f} s"


def format_duration(seconds: float) -> str:
    """`21s`, `12m05s`, `3h20m`, `2d04h`: as Muster's commands show it."""
    total = max(0, round(seconds))
    for unit, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if total >= size:
            return f"{total // size}{unit}{total % size // part:02}{below}"
    return f"{total}s"


def format_count(number: int) -> str:
    """`10.8M`, `8.03B`, `512`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def print_line(line: str) -> None:
    """Print and flush; a full disk under the log does not stop training."""
    with contextlib.suppress(OSError):
        print(line, flush=True)
