"""The programs that gate.py compares: a fixed amount of work per iteration.

As a script, with the size of the work as its argument, it computes on the CPU and records its iterations for
`muster bench`.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

TYPE_CHECKING = False  # importing typing, argparse or json takes longer than the measurement
if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

UNITS = 10_000
"""The work of the program without a slowdown."""
ITERATIONS = 14
"""Of a run on the CPU."""
_DATA = bytes(range(256)) * 64


def cpu_iteration(work: int) -> None:
    """Interpreter, dictionary and hashing: about 1.4 ms for 10,000 units."""
    table: dict[int, int] = {}
    total = 0
    for number in range(work):
        table[number % 97] = number
        total += number * number % 7
    digest = hashlib.sha256()
    for _ in range(work // 100):
        digest.update(_DATA)


def measure(iteration: Callable[[], None], count: int) -> list[tuple[float, float]]:
    """(wall, CPU) seconds of each iteration."""
    times = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        iteration()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def torch_times(device: str, work: int, count: int, matrix: int) -> list[tuple[float, float]]:
    """Matrix products with an element-wise operation between them, one per hundred units."""
    import torch

    torch.manual_seed(0)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    state = torch.randn(matrix, matrix, device=device, dtype=kind)
    weight = torch.randn(matrix, matrix, device=device, dtype=kind)

    def iteration() -> None:
        value = state
        for _ in range(work // 100):
            value = torch.tanh(value @ weight)
        if device == "cuda":
            torch.cuda.synchronize()

    return measure(iteration, count)


def send_torch_times(pipe: Connection, device: str, work: int, count: int, matrix: int) -> None:
    """`torch_times` in a process of its own."""
    pipe.send(torch_times(device, work, count, matrix))


def main() -> None:
    """Write a line per iteration to MUSTER_BENCH_FILE."""
    work = int(sys.argv[1])
    times = measure(lambda: cpu_iteration(work), ITERATIONS)
    with open(os.environ["MUSTER_BENCH_FILE"], "w") as file:
        file.writelines(f'{{"wall_s": {wall}, "cpu_s": {cpu}}}\n' for wall, cpu in times)


if __name__ == "__main__":
    main()
