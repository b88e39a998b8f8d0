"""What one rank takes to save a checkpoint, and to verify it before it is loaded.

    python benchmarks/checkpoint.py [--gb 4] [--folder DIR] [--repeat 3] [--threads 8] [--json]

Seconds, the median of `--repeat`: `plain` writes tensors with torch's writer; `copy` copies them to the host memory of
Muster's checkpoints, and `write` writes them from there with digests and `--threads`, both with fsync; `verify` reads
the files and compares their SHA-256 (from the page cache: they have just been written); `load` loads them. In training
a save runs in threads while the next steps are computed.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from muster_components.trainer.checkpoint_files import CheckedPlanner, CheckedReader, read_metadata
from muster_components.trainer.checkpoint_image import plan_image
from muster_components.trainer.checkpoint_manifest import FileDigest, verify_files
from muster_components.trainer.checkpoint_memory import SlotContent, write_files
from muster_components.trainer.checkpoint_saver import copy_to
from muster_components.trainer.host_buffer import HostBuffer

TENSOR_BYTES = 256_000_000


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.0, help="GB (1e9 bytes) of tensors")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")  # that there is no process group
    logging.disable(logging.WARNING)
    tensors = max(1, round(flags.gb * 1e9 / TENSOR_BYTES))
    state = {f"tensor{i}": torch.rand(TENSOR_BYTES // 4) for i in range(tensors)}
    folder = Path(tempfile.mkdtemp(dir=flags.folder))
    try:
        found = measure(state, folder, flags.repeat, flags.threads)
    finally:
        shutil.rmtree(folder)
    size = tensors * TENSOR_BYTES / 1e9
    if flags.json:
        print(json.dumps({"gb": size, **found}))
    else:
        for name, seconds in found.items():
            print(f"{name:<8} {seconds:7.2f} s  {size / seconds:5.2f} GB/s")


def measure(state: dict[str, torch.Tensor], folder: Path, repeat: int, threads: int) -> dict[str, float]:
    """The median seconds of each part; saves of torch and of Muster take turns."""
    times: dict[str, list[float]] = {"plain": [], "copy": [], "write": [], "verify": [], "load": []}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    image = plan_image(state, dist.new_group(backend="gloo"), threads)
    buffer = HostBuffer(image.size, 1, pin=False)
    for offset, constant in image.constant:
        at = buffer.start(0) + offset
        buffer.memory[at : at + len(constant)] = constant
    content = SlotContent(1, buffer.start(0), image.files)
    targets = [buffer.pieces(0, part.offset, part.source) for part in image.parts]

    def timed(name: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        times[name].append(time.perf_counter() - began)

    for _ in range(repeat):
        plain, hashed = folder / "plain", folder / "hashed"
        timed("plain", lambda: save(state, storage_writer=FileSystemWriter(plain), no_dist=True))  # noqa: B023
        shutil.rmtree(plain)
        hashed.mkdir()
        timed("copy", lambda: [copy_to(part.source, pieces) for part, pieces in zip(image.parts, targets, strict=True)])
        files: list[FileDigest] = []
        timed("write", lambda: files.extend(write_files(hashed, buffer.memory, content, threads)))  # noqa: B023
        timed("verify", lambda: verify_files(hashed, files))  # noqa: B023
        reader = CheckedReader(hashed, read_metadata(hashed, {file.name for file in files}))
        timed("load", lambda: load(state, storage_reader=reader, planner=CheckedPlanner(), no_dist=True))  # noqa: B023
        shutil.rmtree(hashed)
    return {name: median(seconds) for name, seconds in times.items()}


if __name__ == "__main__":
    main()
