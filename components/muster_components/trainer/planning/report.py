"""Predictions as a table and as JSON, and the progress of the planner."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Final

from muster_components.trainer.models.recipes import mfu
from muster_components.trainer.planning.devices import GIB
from muster_components.trainer.planning.planner import Prediction

_MEMORY: Final = (
    ("param", "parameters"),
    ("optim", "optimizer"),
    ("grads", "gradients"),
    ("activ", "activations"),
    ("gather", "gathered"),
    ("buffer", "buffers"),
    ("temp", "temporary"),
)
"""Columns, and fields of MemoryEstimate."""


def plan_table(predictions: Sequence[Prediction], flops_per_step: int | None, peak_flops: float) -> str:
    """One line for each prediction: memory in GiB, then time."""
    heads = [
        "parallel", "micro", "recompute", "reshard", "", "GiB", *(head for head, _ in _MEMORY), "other", "ms/step",
        "tok/s", "MFU",
    ]  # fmt: skip
    rows = [heads]
    for prediction in predictions:
        plan, memory = prediction.plan, prediction.memory
        share = mfu(flops_per_step, prediction.step_s, peak_flops, plan.mesh.world_size)
        rows.append(
            [
                (str(plan.mesh) or "1 rank") + (f" {plan.schedule.name}" if plan.mesh.pp > 1 else ""),
                f"{plan.micro_batch} x {plan.gradient_accumulation_steps}",
                plan.config.parallel.recompute,
                "yes" if prediction.reshards else "no",
                "tight" if prediction.is_tight else "fits" if prediction.fits else "too large",
                f"{prediction.needed / GIB:.1f}",
                *(f"{getattr(memory, name) / GIB:.1f}" for _, name in _MEMORY),
                f"{prediction.reserved / GIB:.1f}",
                f"{1000 * prediction.step_s:.1f}",
                f"{prediction.tokens_per_s:,.0f}",
                "" if share is None else f"{share:.1%}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    left = 5  # columns of text
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plan_json(predictions: Sequence[Prediction]) -> str:
    """A list of objects; memory in bytes, time in seconds."""
    return json.dumps([prediction_values(prediction) for prediction in predictions], indent=2)


def prediction_values(prediction: Prediction) -> dict[str, object]:
    """One prediction as JSON values."""
    plan = prediction.plan
    return {
        "flags": prediction.flag_list(),
        "parallel": str(plan.mesh),
        "schedule": plan.schedule.name if plan.mesh.pp > 1 else None,
        "micro_batch": plan.micro_batch,
        "micro_steps": plan.gradient_accumulation_steps,
        "recompute": plan.config.parallel.recompute,
        "reshards": prediction.reshards,
        "fits": prediction.fits,
        "tight": prediction.is_tight,
        "capacity_bytes": round(prediction.capacity),
        "needed_bytes": round(prediction.needed),
        "reserved_bytes": round(prediction.reserved),
        "tensor_bytes": {name: round(value) for name, value in dataclasses.asdict(prediction.memory).items()},
        "step_s": prediction.step_s,
        "time_s": dataclasses.asdict(prediction.time),
        "tokens_per_s": prediction.tokens_per_s,
    }


def summary_line(prediction: Prediction) -> str:
    """For the header of a run."""
    return (
        f"plan: {prediction.flags}; predicted {prediction.memory.total / GIB:.1f} GiB in tensors of "
        f"{prediction.capacity / GIB:.1f} GiB, {1000 * prediction.step_s:.0f} ms/step"
    )


def report_progress(line: str) -> None:
    """On standard error: the plans alone are on standard output."""
    print(f"plan: {line} ...", file=sys.stderr, flush=True)
