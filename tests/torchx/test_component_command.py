"""The command of a component that `muster bench` starts itself."""

from __future__ import annotations

import pytest
from tests.local.support import has

from muster.errors import InvalidSpec
from muster.torchx.component_command import component_command

FIELD = "benchmarks[0].component"


def test_a_component_of_one_pod_becomes_its_command_and_environment() -> None:
    command, env = component_command(
        "muster.train.fsdp", ["-j", "1x2", "--model", "gpt:1m", "--data", "DIR", "--env", "A=b"], FIELD
    )
    assert command[:7] == ["python", "-m", "muster_components.launch", "--nproc", "2", "--", "-m"]
    assert "--model=gpt:1m" in command
    assert env["A"] == "b"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("muster.train.no-such", [], "must be a TorchX component with its arguments; got 'muster.train.no-such'"),
        ("muster.train.fsdp", ["--model", "gpt:1m"], "got 'muster.train.fsdp': "),
        ("muster.train.fsdp", ["--model", "gpt:1m", "--data", "DIR", "--no-such", "1"], "got 'muster.train.fsdp': "),
        ("muster.train.fsdp", ["-j", "x", "--model", "gpt:1m", "--data", "D"], "-j must be NODESxPROCESSES"),
        (
            "muster.train.fsdp",
            ["-j", "2x1", "--model", "gpt:1m", "--data", "D"],
            "with one pod; got 'muster.train.fsdp' with 2",
        ),
    ],
)
def test_what_cannot_be_one_command_is_refused(name: str, arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidSpec, check=has(message, FIELD, field=FIELD)):
        component_command(name, arguments, FIELD)
