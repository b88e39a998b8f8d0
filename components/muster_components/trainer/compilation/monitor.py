"""Compilation of one rank during a run: loads the compile cache, records what torch compiles, and saves the cache."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from muster_components.trainer.compilation.cache import CompileCache
from muster_components.trainer.compilation.records import CompileRecord, CompileRecorder, summary_line
from muster_components.trainer.context import RunContext
from muster_components.trainer.data.cache_folder import cache_root
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.parallel.mesh import RankMesh
from muster_components.trainer.plan import TrainPlan
from muster_components.trainer.reporter import Reporter

NO_CACHE: Final = "none"
"""The value of `--compile_cache` that turns the cache off."""


class CompileMonitor:
    """Call `begin` before the first step, and `after_step` after each step for which `compiled` is true."""

    def __init__(self, reporter: Reporter, cache: CompileCache | None) -> None:
        self._reporter = reporter
        self._cache = cache
        self._recorder = CompileRecorder()
        self._new: list[CompileRecord] = []
        self._all: list[CompileRecord] = []
        self._steps = 0
        self._saved = False

    def begin(self) -> None:
        """Load the cache."""
        if self._cache is not None:
            self._saved = self._cache.load()
            self._cache.use_folder(os.environ)

    def compiled(self) -> bool:
        """Whether torch compiled anything, or broke a graph, since the last call of `after_step`."""
        self._steps += 1
        self._new += self._recorder.read()
        return bool(self._new)

    def after_step(self, step: int) -> None:
        """Record the new compilations; save the cache if it lacks one of them."""
        new, self._new = self._new, []
        self._all += new
        for record in new:
            self._reporter.write_compilation(step, dataclasses.asdict(record))
            if self._steps > 1 and record.kind == "graph":  # in the first step it is expected
                place = f"{record.function} ({record.file}:{record.line})"
                cause = f": {record.reason}" if record.reason else ""
                message = f"step {step} compiled {place} in {record.seconds:.1f} s{cause}"
                self._reporter.record_event("recompiled", message, step=step, echo=False)
        if self._cache is not None and self._cache.writes:
            misses = sum(record.cache_misses for record in new)
            if misses or not self._saved:
                self._saved = self._cache.save()

    def summary(self) -> str | None:
        """See `summary_line`; None if nothing was compiled."""
        return summary_line(self._all) if self._all else None


def compile_monitor(
    plan: TrainPlan,
    context: RunContext,
    model: TrainModel,
    mesh: RankMesh,
    reporter: Reporter,
    environ: Mapping[str, str],
) -> CompileMonitor:
    """The monitor of this rank. Every rank must call this."""
    location = cache_location(plan, context, environ)
    if location is None:
        return CompileMonitor(reporter, None)
    part = cache_part(mesh, context)
    parts = [""] * context.world_size
    dist.all_gather_object(parts, part)
    key = cache_key(plan, model, environ)
    cache = CompileCache(
        location,
        key,
        part,
        Path(environ.get("TORCHINDUCTOR_CACHE_DIR") or cache_root(environ) / "inductor").absolute(),
        writes=parts.index(part) == context.rank,
        warn=reporter.log,
        in_run_folder=plan.config.compile.cache is None,
    )
    return CompileMonitor(reporter, cache)


def cache_location(plan: TrainPlan, context: RunContext, environ: Mapping[str, str]) -> str | None:
    """The folder or URL of the cache: that of the namespace in `--compile_cache`, by default in the run folder."""
    chosen = plan.config.compile.cache
    if plan.compile_backend != "inductor" or chosen == NO_CACHE:
        return None  # other backends have no artifacts
    if chosen is None:
        return str(context.run_dir / "compile-cache")
    location = chosen if "://" in chosen else os.path.abspath(chosen)
    return f"{location.rstrip('/')}/{namespace(environ)}"


def namespace(environ: Mapping[str, str]) -> str:
    """The job's namespace; `default` outside Muster."""
    return environ.get("MUSTER_NAMESPACE") or "default"


def cache_part(mesh: RankMesh, context: RunContext) -> str:
    """Names the ranks that compile the same code: code for GPUs contains the index of the GPU in its host, stages of a
    pipeline differ, and tensor parallelism has constants of its ranks."""
    device = f"gpu-{context.local_rank}" if torch.cuda.is_available() else "cpu"
    return f"pp-{mesh.pp_rank}.tp-{mesh.tp_rank}.{device}"


def environment_key(environ: Mapping[str, str]) -> dict[str, object]:
    """What decides which code is compiled for any program, as JSON values: versions and the kind of device. torch
    checks each piece of code by a key of its own too."""
    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = None
    on_gpu = torch.cuda.is_available()
    return {
        "format": "files of Inductor and Triton",
        "namespace": namespace(environ),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "cuda": torch.version.cuda,
        "triton": triton_version,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name()
        if on_gpu
        else f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def cache_key(plan: TrainPlan, model: TrainModel, environ: Mapping[str, str]) -> dict[str, object]:
    """What decides which code is compiled for this run, as JSON values."""
    return {
        **environment_key(environ),
        "model": {"name": model.name, **model.architecture()},
        "mesh": str(plan.mesh),
        "flags": {
            "seq_len": plan.seq_len,
            "micro_batch": plan.micro_batch,
            "schedule": plan.schedule.name,
            "precision": plan.precision,
            "float8": plan.config.float8.recipe,
            "float8_emulate": plan.config.float8.emulate,
            "deterministic": plan.config.deterministic,
            "recompute": plan.config.parallel.recompute,
            "offload_activations": plan.config.parallel.offload_activations,
            "async_tp": plan.config.parallel.async_tp,
            "symmetric_memory": plan.config.parallel.symmetric_memory,
            "compiled_autograd": plan.config.compile.autograd,
            "cuda_graph": plan.cuda_graph,
        },
    }
