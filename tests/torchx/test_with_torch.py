"""Scripts that use torch, through TorchX and the engine of this host; skipped where there is no torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.torchx.torchrun_components import TORCHRUN_COMPONENTS
from torchx.runner import Runner, get_runner
from torchx.specs import AppState

pytestmark = [
    pytest.mark.slow,
    pytest.mark.matrix,
    pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch"),  # not imported: that takes seconds
]

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), flush=True)
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    (weight * 2).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def runner(home: Path) -> Iterator[Runner]:
    with get_runner(muster_home=str(home)) as runner:
        yield runner


@pytest.fixture
def in_folder_of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder_of_script")
@pytest.mark.parametrize("component", TORCHRUN_COMPONENTS)
@pytest.mark.smoke
def test_torchxs_own_components_for_torchrun_train(runner: Runner, component: str) -> None:
    handle = runner.run_component(
        f"dist.{component}", ["-j", "1x2", "--cpu", "1", "--script", "train.py"], "muster_local"
    )
    lines = list(runner.log_lines(handle, "train", 0, should_tail=True))
    status = runner.status(handle)
    assert status is not None
    assert status.state == AppState.SUCCEEDED, lines
    assert sum("sum 1.0 of 2" in line for line in lines) == 2


@pytest.mark.usefixtures("in_folder_of_script")
def test_a_script_across_two_pods_is_traced_and_its_report_is_the_last_line(runner: Runner) -> None:
    arguments = ["-j", "2x1", "--script", "train.py", "--trace_steps", "2:4"]
    handle = runner.run_component("muster.train.script", arguments, "muster_local")
    lines = list(runner.log_lines(handle, "trainer", 0, should_tail=True))
    assert "sum 1.0 of 2\n" in lines
    assert any(line.startswith("muster: 6 steps  ") for line in lines[-9:]), "the report's summary"
    label, _, report = lines[-1].strip().rpartition(" ")
    assert label == "muster: report"
    assert Path(report).is_file()
    assert sorted(path.name for path in Path(report).parent.parent.glob("traces/*.json.gz")) == [
        "rank-0.attempt-0.steps-2-4.json.gz", "rank-1.attempt-0.steps-2-4.json.gz",
    ]  # fmt: skip
