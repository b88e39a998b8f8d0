"""What rank 0 decides when the planner fails."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from muster_components.trainer.context import RunContext
from muster_components.trainer.data.samples import Samples
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.planning.at_start import _decide, decide_plan
from muster_components.trainer.planning.devices import parse_device

pytestmark = pytest.mark.slow  # imports torch
NEEDS_VALUES = """
import torch
from torch import nn

class Model(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()

def build():
    rates = torch.linspace(0, 0.1, 4, device="cpu")
    print(f"rates up to {rates[-1]:.2f}")
    return Model(2, 1)
"""
HOST = HostCapabilities(device="cuda", world_size=1, has_compiler=True, has_bf16=True)


@pytest.mark.parametrize("auto", [False, True])
def test_a_model_whose_error_has_no_message_is_named_by_the_type(monkeypatch: pytest.MonkeyPatch, auto: bool) -> None:
    from muster_components.trainer.session import train_model

    def fail(*_: object) -> object:
        raise NotImplementedError

    monkeypatch.setattr("muster_components.trainer.planning.planner.profile_model", fail)
    flags = ("--model", "gpt:1m", "--data", "unused", *(("--parallel", "auto") if auto else ()))
    plan = resolve_plan(parse_train_config(flags, {}), HOST)
    model: TrainModel = train_model(plan)
    # Samples of tokens are not read: their shapes are known.
    config, message = _decide(plan, model, cast(Samples, None), parse_device("h100"), HOST, 1)
    assert (config is None) == auto
    assert "memory" in message
    assert "cannot run without values (NotImplementedError)" in message


def test_a_factory_that_fails_without_values_alone_is_trained_without_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_components.trainer.data.samples import FieldSamples
    from muster_components.trainer.session import train_model

    (tmp_path / "needs_values.py").write_text(NEEDS_VALUES)
    monkeypatch.syspath_prepend(tmp_path)
    plan = resolve_plan(parse_train_config(("--model", "needs_values:build", "--data", "unused"), {}), HOST)
    model = train_model(plan)
    samples = FieldSamples([{"x": [1.0, 2.0]}], "unused")
    config, message = _decide(plan, model, samples, parse_device("h100"), HOST, 1)
    assert config is plan.config
    assert "memory is not predicted: needs_values:build cannot run without values (TypeError: unsupported" in message


def test_without_a_gpu_to_plan_for_auto_is_the_default() -> None:
    import torch

    from muster_components.trainer.session import train_model

    host = HostCapabilities(device="cpu", world_size=4, has_compiler=False, has_bf16=True)
    flags = ("--model", "gpt:1m", "--data", "unused", "--parallel")
    plan = resolve_plan(parse_train_config((*flags, "auto"), {}), host)
    context = RunContext(
        rank=0, world_size=4, local_rank=0, local_world_size=4, attempt=0, job="", run_dir=Path("unused")
    )
    decision = decide_plan(plan, train_model(plan), cast(Samples, None), torch.device("cpu"), host, context)
    assert decision.plan == resolve_plan(parse_train_config((*flags, "fsdp"), {}), host)
    assert decision.summary == "plan: auto is for GPUs; on CPUs it is --parallel fsdp=4"
