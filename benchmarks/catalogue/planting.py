"""The faults: what each does at a point of a step, on the rank that has it."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

HOG = """
import sys, threading, torch
go = threading.Event()
def read():
    for line in sys.stdin:
        go.set() if line.strip() == "go" else go.clear()
    import os; os._exit(0)
threading.Thread(target=read, daemon=True).start()
a = torch.randn(4096, 4096, device="cuda:" + sys.argv[1], dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    go.wait()
    for _ in range(4):
        a @ a
    torch.cuda.synchronize(int(sys.argv[1]))
"""
_hogs: dict[int, subprocess.Popen[str]] = {}


def hog(index: int) -> subprocess.Popen[str]:
    """A process that computes on a GPU while it is asked to; one for each process, started early."""
    if index not in _hogs:
        _hogs[index] = subprocess.Popen(
            [sys.executable, "-c", HOG, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    return _hogs[index]


class Planting:
    """A fault that is active: its name, the seconds it takes in a step, and what it keeps between points."""

    def __init__(self, fault: str, share: float, step_s: float, device: torch.device) -> None:
        self.fault, self.share, self.seconds, self.device = fault, share, share * step_s, device
        self.step = 0
        self.kept: Any = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def begin(self) -> None:
        """Prepare, outside of traced steps."""
        if self.fault == "garbage":
            # About 10 million objects a second are visited.
            self.kept = [{"a": i} for i in range(int(self.seconds * 1.5e7))]
        elif self.fault == "extra-kernels":
            self.kept = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)
        elif self.fault in ("copy-out", "silent-checkpoint"):
            self.kept = torch.ones(8 << 20, device=self.device)
        elif self.fault == "copy-in":
            self.kept = torch.ones(8 << 20)
        elif self.fault == "busy-thread":
            self._thread = threading.Thread(target=self._spin, daemon=True)
            self._thread.start()
        elif self.fault == "busy-device":
            process = hog(self.device.index)
            assert process.stdin is not None
            if process.stdout is not None:
                process.stdout.readline()
                process.stdout = None
            process.stdin.write("go\n")
            process.stdin.flush()

    def end(self) -> None:
        """Undo what `begin` did."""
        self.kept = None
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.fault == "busy-device":
            process = hog(self.device.index)
            assert process.stdin is not None
            process.stdin.write("stop\n")
            process.stdin.flush()
        if self.fault == "garbage":
            gc.collect()

    def _spin(self) -> None:
        while not self._stop.is_set():
            until = time.monotonic() + 0.003
            while time.monotonic() < until:
                pass
            time.sleep(0.003)


def _spin(seconds: float) -> int:
    until, words = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        words += len(" ".join(str(i) for i in range(100)).split())
    return words


def _sleep(planting: Planting, _value: Any) -> None:
    with record_function("evaluate"):
        time.sleep(planting.seconds)


def _silent_sleep(planting: Planting, _value: Any) -> None:
    time.sleep(planting.seconds)


def _python_loop(planting: Planting, _value: Any) -> None:
    with record_function("tokenize"):
        _spin(planting.seconds)


def _silent_loop(planting: Planting, _value: Any) -> None:
    _spin(planting.seconds)


def _preprocess(planting: Planting, _value: Any) -> None:
    until, image = time.monotonic() + planting.seconds, torch.rand(3, 256, 256)
    while time.monotonic() < until:
        image = torch.nn.functional.interpolate(image[None], scale_factor=1.0, mode="bilinear")[0].clamp(0, 1)


def _log_metrics(planting: Planting, _value: Any) -> None:
    with record_function("log_metrics"):
        torch.ones(1, device=planting.device).sum().item()
        time.sleep(planting.seconds)


def _items(planting: Planting, _value: Any) -> None:
    for _ in range(3):
        torch.ones(1, device=planting.device).sum().item()


def _copy_out(planting: Planting, _value: Any) -> None:
    until = time.monotonic() + planting.seconds
    while True:
        planting.kept.cpu()
        if time.monotonic() > until:
            return


def _copy_in(planting: Planting, _value: Any) -> None:
    until = time.monotonic() + planting.seconds
    while True:
        planting.kept.to(planting.device)
        if time.monotonic() > until:
            return


def _save(planting: Planting, optimizer: Any) -> None:
    planting.step += 1
    if planting.step % 2:
        return
    started = time.monotonic()
    with tempfile.TemporaryFile() as file:
        state = optimizer.state_dict() if optimizer is not None and hasattr(optimizer, "state_dict") else {}
        some = [v for s in list(state.get("state", {}).values())[:4] for v in s.values() if isinstance(v, Tensor)]
        torch.save(some or [torch.ones(1 << 20)], file)
    time.sleep(max(0.0, 2 * planting.seconds - (time.monotonic() - started)))  # a slow file system


def _checkpoint(planting: Planting, optimizer: Any) -> None:
    with record_function("save_checkpoint"):
        _save(planting, optimizer)


def _garbage(_planting: Planting, _value: Any) -> None:
    gc.collect()


def _extra_kernels(planting: Planting, _value: Any) -> None:
    for _ in range(max(1, round(planting.seconds / 0.00019))):  # of such a product on an H200
        torch.mm(planting.kept, planting.kept)


def _small_kernels(planting: Planting, _value: Any) -> None:
    until, one = time.monotonic() + planting.seconds, torch.ones(1, device=planting.device)
    while time.monotonic() < until:
        for _ in range(50):
            one.add_(1)


def _enlarge(value: Any, share: float) -> Any:
    if isinstance(value, Tensor):
        more = max(1, round(len(value) * share))
        return torch.cat([value, value[:more]])
    if isinstance(value, Mapping):
        return {key: _enlarge(one, share) for key, one in value.items()}
    return type(value)(_enlarge(one, share) for one in value)


def _larger(planting: Planting, value: Any) -> Any:
    return _enlarge(value, max(0.25, planting.share))


def _reshape(planting: Planting, value: Any) -> Any:
    planting.step += 1
    return value[:, : value.shape[1] - planting.step]


def _numpy_augment(planting: Planting, _value: Any) -> None:
    until, image = time.monotonic() + planting.seconds, np.random.rand(256, 256, 3)
    while time.monotonic() < until:
        image = np.clip(np.roll(image, 3, 0) * 1.01 + np.random.normal(size=image.shape), 0, 1)


def _parameters(optimizer: Any) -> list[Tensor]:
    found = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    return [p.to_local() if hasattr(p, "to_local") else p for p in (p.detach() for p in found)]


def _grad_norms(planting: Planting, optimizer: Any) -> None:
    parameters, until = _parameters(optimizer), time.monotonic() + planting.seconds
    while parameters:
        for p in parameters:
            p.norm().item()
        if time.monotonic() > until:
            return


def _moving_average(planting: Planting, optimizer: Any) -> None:
    parameters = _parameters(optimizer)
    planting.kept = planting.kept or [p.clone() for p in parameters]
    bytes_moved = sum(3 * p.numel() * p.element_size() for p in parameters)
    for _ in range(max(1, round(planting.seconds / max(bytes_moved / 3.5e12, 1e-4)))):  # as an H200's memory moves
        for kept, p in zip(planting.kept, parameters, strict=True):
            kept.lerp_(p, 0.01)


def _empty_cache(_planting: Planting, _value: Any) -> None:
    torch.cuda.empty_cache()


def _nothing(_planting: Planting, _value: Any) -> None:
    """The fault is a thread, another process or the program itself."""


Action = Callable[[Planting, Any], Any]
FAULTS: dict[str, dict[str, Action]] = {
    "none": {},
    "slow-loader": {"data": _silent_sleep},
    "slow-worker": {},
    "preprocess": {"data": _preprocess},
    "python-loop": {"step": _python_loop},
    "silent-loop": {"step": _silent_loop},
    "sleep": {"step": _sleep},
    "silent-sleep": {"step": _silent_sleep},
    "log-metrics": {"update": _log_metrics},
    "backward-sleep": {"backward": _silent_sleep},
    "items": {"forward": _items},
    "copy-out": {"step": _copy_out},
    "copy-in": {"step": _copy_in},
    "checkpoint": {"update": _checkpoint},
    "silent-checkpoint": {"update": _save},
    "garbage": {"step": _garbage},
    "extra-kernels": {"step": _extra_kernels},
    "small-kernels": {"step": _small_kernels},
    "larger-input": {"data": _larger},
    "recompile": {"step": _reshape},
    "empty-cache": {"forward": _empty_cache},
    "numpy-augment": {"data": _numpy_augment},
    "grad-norms": {"update": _grad_norms},
    "moving-average": {"update": _moving_average},
    "busy-thread": {},
    "busy-device": {},
}


def points(fault: str) -> dict[str, Action]:
    """The points at which a fault acts."""
    return FAULTS.get(fault, {})
