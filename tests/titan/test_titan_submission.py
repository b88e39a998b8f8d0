"""What is refused of a job of TorchTitan before it is submitted."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_components.app_builder import InvalidArgument
from muster_components.titan import config, submission
from muster_components.titan.config import TitanLayout
from muster_components.train import titan
from muster_components.trainer.errors import InputError

needs_titan = pytest.mark.skipif(find_spec("torchtitan") is None, reason="`make frameworks` installs torchtitan")
TOML = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
steps = 20
[parallelism]
tensor_parallel_degree = 2
"""
CHECKPOINTS = ("--checkpoint.enable",)
ELASTIC = (*CHECKPOINTS, "--checkpoint.exclude_from_loading=dataloader")


def titan_of(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (config, submission):
        monkeypatch.setattr(module, "installed_version", lambda: version)


def test_another_version_of_torchtitan_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    titan_of("0.3.0", monkeypatch)
    with pytest.raises(InvalidArgument, match=r"TorchTitan must be version 0\.2\.2; got 0\.3\.0"):
        titan("--training.steps=3")


def test_where_torchtitan_is_not_installed_the_flags_are_passed_on_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    titan_of(None, monkeypatch)
    app = titan("--training.stepz=3", j="2x8")
    (role,) = app.roles
    assert app.name == "titan"
    assert role.args == ["-m", "muster_components.launch", "--nproc", "8", "--", "-m", "muster_components.titan",
                         "--training.stepz=3"]  # fmt: skip
    with pytest.raises(InvalidArgument, match="only where torchtitan is installed"):
        titan(j="1:2x8")


def degrees(**chosen: int) -> Any:
    names = ("data_parallel_replicate", "context_parallel", "tensor_parallel", "pipeline_parallel")
    fields = {f"{name}_degree": 1 for name in names} | {"data_parallel_shard_degree": -1} | chosen
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("chosen", "world_size", "why"),
    [
        ({"tensor_parallel_degree": 3}, 8, "must divide the number of ranks, 8; got data_parallel_shard_degree=-1, "),
        ({"data_parallel_shard_degree": 4}, 8, "must multiply to the number of ranks, 8; got "),
        ({"pipeline_parallel_degree": 0}, 8, "pipeline_parallel_degree must be at least 1; got 0"),
        ({"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2}, 8, ""),
        ({"tensor_parallel_degree": 2}, 8, ""),
    ],
)
def test_the_degrees_of_parallelism_must_fit_the_number_of_ranks(
    chosen: dict[str, int], world_size: int, why: str
) -> None:
    if not why:
        config._check_degrees(degrees(**chosen), world_size)
        return
    with pytest.raises(InputError) as refusal:
        config._check_degrees(degrees(**chosen), world_size)
    assert why in str(refusal.value)


@pytest.mark.slow
@pytest.mark.frameworks
@needs_titan
@pytest.mark.parametrize(
    ("flags", "j", "more", "why"),
    [
        (("--training.stepz=3",), "1x2", {}, "TorchTitan rejects its flags: .*training.stepz"),
        (("--model.name=llama9",), "1x2", {}, "model.name must be one of .*llama3"),
        (("--parallelism.tensor_parallel_degree=2",), "1x3", {}, "must divide the number of ranks, 3"),
        (("--checkpoint.load_step=5", *CHECKPOINTS), "1x2", {}, "checkpoint.load_step must be -1"),
        (("--comm.mode=fake_backend",), "1x2", {}, "comm.mode must be default"),
        ((), "1x2", {"max_restarts": 1}, "--max_restarts 1 needs checkpoint.enable"),
        ((), "1:2x2", {}, "an elastic job .* needs checkpoint.enable"),
        (CHECKPOINTS, "1:2x2", {}, "exclude_from_loading must contain dataloader in an elastic job"),
        (("--profiling.enable_profiling",), "1x2", {"trace_steps": "2:4"}, "needs no profiling.enable_profiling"),
    ],
)
def test_what_torchtitan_or_its_resume_does_not_permit_is_refused(
    flags: tuple[str, ...], j: str, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        titan(*flags, j=j, **more)


@pytest.mark.slow
@pytest.mark.frameworks
@needs_titan
def test_its_toml_is_read_and_restarts_follow_from_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "debug.toml").write_text(TOML)
    file = f"--job.config_file={tmp_path}/debug.toml"
    app = titan(file, j="1x4")
    assert (app.name, app.roles[0].max_retries) == ("titan-llama3-debugmodel", 0)
    assert "muster.dev/checkpoint-dir" not in app.metadata
    app = titan(file, *ELASTIC, "--job.dump_folder=/data/out", j="1:2x2", trace_steps="2:4")
    assert (app.roles[0].min_replicas, app.roles[0].max_retries) == (1, submission.RESTARTS)
    assert app.metadata["muster.dev/checkpoint-dir"] == "/data/out/checkpoint"
    with pytest.raises(InvalidArgument, match=r"must divide the number of ranks, 3; got .*tensor_parallel_degree=2"):
        titan(file, j="1x3")
    (tmp_path / "debug.toml").write_text("[training]\nstepz = 3\n")
    with pytest.raises(InvalidArgument, match=r"TorchTitan rejects its configuration: .*stepz"):
        titan(file)


def test_a_layout_is_elastic_if_its_size_may_change() -> None:
    assert TitanLayout(1, 2, 8).is_elastic
    assert not TitanLayout(2, 2, 8).is_elastic
