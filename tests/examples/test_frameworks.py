"""Unmodified scripts of training frameworks run under Muster: started, traced, preempted and resumed.

`make frameworks` installs the frameworks into an environment of their own and runs these tests there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.serving import get, serving
from tests.examples.running import EXAMPLES, LIMIT_S, run
from tests.local.support import eventually, shell_job

from muster.local.client import LocalClient

FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "transformers")
SCRIPTS = {framework: EXAMPLES / "06-frameworks" / f"train_{framework}.py" for framework in FRAMEWORKS}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_script_imports_nothing_of_muster(framework: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse(SCRIPTS[framework].read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert framework in imported
    assert imported <= {framework, "torch", *sys.stdlib_module_names}


needs_frameworks = pytest.mark.skipif(
    all(find_spec(framework) is None for framework in FRAMEWORKS if framework != "transformers"),  # that all tests have
    reason="`make frameworks` installs the frameworks",
)


@pytest.mark.slow
@pytest.mark.frameworks
@needs_frameworks
def test_a_rank_of_transformers_starts_before_rank_0_has_made_the_output_folder(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; from transformers import TrainingArguments;"
        " TrainingArguments.should_save = False;"  # as on all ranks but the first, which makes the folder
        " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    output = tmp_path / "output"
    script = [str(SCRIPTS["transformers"]), "--steps", "1", "--save_every", "100", "--output", str(output)]
    command = [sys.executable, "-c", program, *script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.timeout(LIMIT_S + 100)
@needs_frameworks
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_preempted_script_of_the_framework_resumes_from_its_own_checkpoint(framework: str) -> None:
    out = run("06-frameworks", framework)
    resumed = re.search(
        r"preempted after step (\d+), resumed after step (\d+); \d+ more steps, [24] traces, a report", out
    )
    assert resumed is not None, out
    assert resumed[1] == resumed[2]


HALF_AN_EPOCH = """
import json, sys
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed

folder, part, seedable = sys.argv[1:]
set_seed(0)
accelerator = Accelerator(
    cpu=True,
    project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True),
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable == "seedable"),
)
data = torch.utils.data.TensorDataset(torch.arange(96.0)[:, None])
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(1, 1))
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
if part == "second":
    accelerator.load_state(f"{folder}/checkpoints/checkpoint_0")
    loader = accelerator.skip_first_batches(loader, 8)
seen = []
for number, (x,) in enumerate(loader, start=1):
    seen += [int(value) for value in x.flatten()]
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    if part == "first" and number == 8:
        accelerator.save_state()
        break
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(find_spec("accelerate") is None, reason="`make frameworks` installs accelerate")
@pytest.mark.parametrize("sampler", ["default", "seedable"])
def test_accelerate_resumes_an_epoch_with_other_samples_unless_its_sampler_is_seedable(
    tmp_path: Path, sampler: str
) -> None:
    """docs/tasks/frameworks.md has the numbers."""
    (tmp_path / "half.py").write_text(HALF_AN_EPOCH)
    seen: list[int] = []
    for part in ("first", "second"):
        command = [sys.executable, str(tmp_path / "half.py"), str(tmp_path / "out"), part, sampler]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        seen += json.loads(ended.stdout.splitlines()[-1])
    assert len(seen) == 96
    lost = 96 - len(set(seen))
    assert (lost > 0) == (sampler == "default"), lost
    print(f"{lost} of 96 samples are not read in this epoch, and {lost} are read twice")


DEFAULT_TRAINER = """
import os, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(torch.utils.data.Dataset):
    read = 0

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        self.read += 1
        if 4100 < self.read <= 4200:  # steps of 1.2 s: some report, which they do at most every 5 s
            time.sleep(0.15)
        while self.read == 4200 and not os.path.exists("END"):  # until the test has seen it
            time.sleep(0.05)
        tokens = torch.randint(0, 64, (16,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
Trainer(model, TrainingArguments("OUTPUT"), train_dataset=RandomTokens()).train()
"""


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(find_spec("accelerate") is None, reason="`make frameworks` installs accelerate")
def test_a_trainer_with_default_arguments_shows_step_last_step_time_left_and_loss(tmp_path: Path) -> None:
    """In `muster describe --json`, `muster watch` and on the job's page. Its 3 epochs have 600 steps; the loss is
    logged every 500."""
    source = DEFAULT_TRAINER.replace("END", str(tmp_path / "end")).replace("OUTPUT", str(tmp_path / "output"))
    (tmp_path / "train.py").write_text(source)
    launch = f"{sys.executable} -m muster_components.launch --nproc 1 -- -m muster_components.trainer.instrument"
    client = LocalClient.up(str(tmp_path / "home"), nodes="1x1")
    environ = {**os.environ, "MUSTER_HOME": str(tmp_path / "home"), "NO_COLOR": "1", "COLUMNS": "200"}
    muster = str(Path(sys.executable).with_name("muster"))
    try:
        client.submit(shell_job("tune", f"exec {launch} {tmp_path}/train.py", gpus=1, env={"CUDA_VISIBLE_DEVICES": ""}))
        watch = subprocess.Popen([muster, "watch", "tune"], stdout=subprocess.PIPE, text=True, env=environ)

        def described() -> dict[str, Any]:
            output = subprocess.check_output([muster, "describe", "tune", "--json"], env=environ)
            status = json.loads(output)[0]["status"]
            assert status["phase"] not in ("Failed", "Succeeded")
            progress = status.get("progress", {})
            return dict(progress) if "loss" in progress else {}

        progress = eventually(described)
        assert 500 <= progress["step"] < progress["steps"] == 600
        assert progress["estimatedRemainingSeconds"] > 0
        assert 3.5 < progress["loss"] < 4.5  # ln 64 = 4.16
        with serving(client) as server:
            page = " ".join(re.sub(r"<[^>]*>", " ", get(server, "/jobs/default/tune").text).split())
        assert re.search(r"Step \d+/600 \S+ ago Loss [34]\.\d+ ETA \d", page), page
        assert watch.stdout is not None
        assert any(re.search(r"step \d+/600 +loss [34]\.\d+ +ETA \d", line) for line in watch.stdout)
        (tmp_path / "end").touch()
        watch.stdout.read()
        assert watch.wait() == 0
        (last,) = client.heartbeats("tune")
        assert (last["step"], last["steps"], last["phase"]) == (600, 600, "done")
    finally:
        client.down(force=True)


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.timeout(LIMIT_S + 100)
@pytest.mark.skipif(find_spec("torchtitan") is None, reason="`make frameworks` installs torchtitan")
def test_torchtitans_debug_model_is_suspended_and_does_each_step_once() -> None:
    assert re.search(r"12 steps in 2 attempts, loss \d\.\d+ -> \d\.\d+", run("19-torchtitan", CUDA_VISIBLE_DEVICES=""))
