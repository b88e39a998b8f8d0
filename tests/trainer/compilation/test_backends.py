"""Backends of torch.compile by name."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from tests.trainer.conftest import TINY, Starter, losses

from muster_components.trainer.compilation.backends import compile_in_place, find_backend
from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_OK, InputError

pytestmark = pytest.mark.slow


def test_an_unknown_backend_is_refused_with_the_registered_ones() -> None:
    with pytest.raises(InputError) as refused:
        find_backend("inducter")
    message = str(refused.value)
    assert "got 'inducter'" in message
    assert all(name in message for name in ("inductor", "cudagraphs", "eager", "aot_eager", "thunder"))
    assert "TESTING" not in message


def test_a_backend_that_a_package_registers_with_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(graph: Any, _inputs: Any) -> Any:
        return graph.forward

    backends = torch._dynamo.backends.registry
    torch.compiler.list_backends()  # reads the entry points
    monkeypatch.setattr(backends, "_BACKENDS", dict(backends._BACKENDS))
    monkeypatch.setattr(backends, "_COMPILER_FNS", dict(backends._COMPILER_FNS))
    torch._dynamo.register_backend(compiler, "of_a_package")
    assert find_backend("of_a_package") == "of_a_package"
    module = torch.nn.Linear(2, 2)
    compile_in_place(module, find_backend("of_a_package"))
    torch.testing.assert_close(module(torch.ones(2)), module.weight.sum(1) + module.bias)


def test_thunder_is_used_if_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("thunder.dynamo")
    module.ThunderCompiler = lambda: "a compiler of Thunder"
    monkeypatch.setitem(sys.modules, "thunder", types.ModuleType("thunder"))
    monkeypatch.setitem(sys.modules, "thunder.dynamo", module)
    assert find_backend("thunder") == "a compiler of Thunder"
    monkeypatch.setitem(sys.modules, "thunder.dynamo", None)
    with pytest.raises(InputError, match=r"lightning-thunder in a version for torch [\d.]+.*; got ModuleNotFoundError"):
        find_backend("thunder")


def test_an_unknown_backend_ends_the_trainer_before_it_reads_data(start: Starter, tmp_path: Path) -> None:
    flags = [flag for flag in TINY if flag != "--no_compile"]
    ranks = start(1, *flags, "--data", str(tmp_path / "missing"), "--backend", "inducter")
    assert ranks.end() == [EXIT_BAD_INPUT]
    assert "trainer: --backend must be one of" in ranks.log_text()


@pytest.mark.parametrize("parallel", ["fsdp", "ddp", "pp=2"])
def test_losses_of_another_backend_equal_those_without(
    start: Starter, text: Path, tmp_path: Path, parallel: str
) -> None:
    flags = [flag for flag in TINY if flag != "--no_compile"]
    run = (*flags, "--data", str(text), "--steps", "3", "--parallel", parallel)
    ways = {"aot_eager": ("--backend", "aot_eager"), "plain": ("--no_compile",)}
    if parallel == "ddp":
        ways["autograd"] = ("--backend", "eager", "--compiled_autograd")
    for name, chosen in ways.items():
        ranks = start(2, *run, *chosen, run_dir=tmp_path / name)
        assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
        expected = "not compiled" if name == "plain" else f"compiled by {chosen[1]}"
        assert expected in ranks.log_text()
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "aot_eager"), abs=1e-4)
