"""What rank 0 decides when the planner fails."""

from __future__ import annotations

from typing import cast

import pytest

from muster_components.trainer.data.samples import Samples
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.planning.at_start import _decide
from muster_components.trainer.planning.devices import parse_device

pytestmark = pytest.mark.slow  # imports torch
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
