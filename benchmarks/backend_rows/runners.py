"""One training step of each column: loops of plain PyTorch with a backend of torch.compile, and the trainer's step."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from typing import Any, Protocol

import numpy as np
import torch
from benchmarks.backend_rows.workloads import SEED, Batch, Workload
from torch import Tensor, nn

from muster_components.trainer.context import run_context
from muster_components.trainer.device import host_capabilities
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.forward_backward import GradientAccumulation
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.parallel.mesh import build_mesh
from muster_components.trainer.parallel.sharding import parallelize
from muster_components.trainer.plan import TrainPlan, resolve_plan
from muster_components.trainer.session import train_model
from muster_components.trainer.train_step import (
    StepHandle,
    TrainStep,
    adamw,
    learning_rate,
    set_learning_rate,
)

LR, WARMUP_STEPS, SCHEDULE_STEPS, WEIGHT_DECAY, CLIP = 3e-4, 10, 10_000, 0.1, 1.0
KEPT_LOSSES = 20
"""First losses that are kept for the comparison."""


EAGER, CUDAGRAPHS, OURS = "eager", "cudagraphs", "ours"


class Runner(Protocol):
    """A model that is being trained."""

    def step(self, number: int) -> None:
        """Launch step `number` (from 1); need not wait for the device."""
        ...

    def losses(self) -> list[float]:
        """Those of the first KEPT_LOSSES steps; waits for the device."""
        ...


class PlainRunner:
    """The usual loop: autocast, torch.compile, gradient clipping, fused AdamW. Losses stay on the device."""

    def __init__(self, workload: Workload, backend: str, device: torch.device, *, dropout: float) -> None:
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        self._module = workload.build(dropout).to(device).train()
        self._backend = backend
        compiled: Any = self._module if backend == EAGER else torch.compile(self._module, backend=backend)
        self._forward = compiled
        self._batches = workload.batches(device, torch.bfloat16 if self._on_gpu else torch.float32)
        self._optimizer = _plain_adamw(self._module)
        self._device = device
        self._losses: list[Tensor] = []

    def step(self, number: int) -> None:
        """Forward, backward, clip, update."""
        set_learning_rate(self._optimizer, learning_rate(number, peak=LR, warmup=WARMUP_STEPS, steps=SCHEDULE_STEPS))
        if self._backend == CUDAGRAPHS:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._on_gpu):
            loss = self._forward(**self._batches[(number - 1) % len(self._batches)])
        loss.backward()
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if number <= KEPT_LOSSES:
            self._losses.append(loss.detach().clone())

    def losses(self) -> list[float]:
        """See Runner."""
        return [float(loss) for loss in self._losses]


class TrainerRunner:
    """The trainer's own step, as `session.train` builds it for one rank, with batches that are on the device before.

    As in the trainer's loop, the results of a step are read after the next one has been launched.
    """

    def __init__(self, workload: Workload, device: torch.device, *, dropout: float) -> None:
        plan = _trainer_plan(workload, device, dropout)
        model = train_model(plan)
        parallel = parallelize(model, plan, device, build_mesh(plan.mesh, device.type))
        optimizers = [adamw(part.model, plan) for part in parallel.parts]
        for part in parallel.parts:
            part.publish_weights()
        weight = plan.global_batch * workload.weight_per_sample
        reader: Any = _Batches(workload, model, plan, device)
        gradients = GradientAccumulation(model, parallel, 1 / weight)
        self._step = TrainStep(plan, parallel, optimizers, reader, gradients, weight, lambda: False)
        self._pending: deque[StepHandle] = deque()
        self._losses: list[float] = []

    def step(self, number: int) -> None:
        """Launch the step, read the one before."""
        self._pending.append(self._step.launch(number))
        self._read(leave=1)

    def losses(self) -> list[float]:
        """See Runner."""
        self._read(leave=0)
        return self._losses[:KEPT_LOSSES]

    def _read(self, leave: int) -> None:
        while len(self._pending) > leave:
            self._losses.append(self._pending.popleft().result().loss)


def runner(workload: Workload, backend: str, device: torch.device, *, dropout: float) -> Runner:
    """That of a column; `ours` is the trainer."""
    if backend == OURS:
        return TrainerRunner(workload, device, dropout=dropout)
    return PlainRunner(workload, backend, device, dropout=dropout)


def _trainer_plan(workload: Workload, device: torch.device, dropout: float) -> TrainPlan:
    flags = [*workload.trainer_flags, "--data", "none", "--global_batch", str(workload.batch_size)]
    flags += ["--steps", str(SCHEDULE_STEPS), "--seed", str(SEED), "--lr", str(LR), "--warmup", str(WARMUP_STEPS)]
    flags += ["--weight_decay", str(WEIGHT_DECAY), "--clip", str(CLIP)]
    if workload.recipe is None and device.type == "cuda":
        flags.append("--cuda_graph")  # the default of recipes
    config = parse_train_config(flags, {})
    if workload.recipe is not None:
        config = dataclasses.replace(config, model=dataclasses.replace(workload.recipe, dropout=dropout))
    return resolve_plan(config, host_capabilities(device, run_context({}, None), os.environ))


def _plain_adamw(module: nn.Module) -> torch.optim.AdamW:
    """With the groups of the trainer's."""
    groups = [
        {"params": [p for p in module.parameters() if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in module.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)


class _Batches:
    """Stands in for the trainer's BatchReader."""

    def __init__(self, workload: Workload, model: TrainModel, plan: TrainPlan, device: torch.device) -> None:
        dtype = torch.bfloat16 if plan.precision == "bf16" else torch.float32
        self._batches = workload.batches(device, dtype)
        if isinstance(plan.config.model, ModelConfig) and plan.config.model.dropout:
            for number, batch in enumerate(self._batches):
                batch["number_B"] = _dropout_numbers(model, number, workload.batch_size, device)

    def read(self, step: int) -> list[Batch]:
        return [self._batches[(step - 1) % len(self._batches)]]


def _dropout_numbers(model: TrainModel, batch: int, batch_size: int, device: torch.device) -> Tensor:
    """What chooses the elements that dropout drops, as the recipe computes it."""
    tokens = np.zeros((batch_size, 2), dtype=np.int64)
    numbers = batch * batch_size + np.arange(batch_size)
    return torch.from_numpy(model.collate({"tokens": tokens}, numbers, SEED)["number_B"]).to(device)
