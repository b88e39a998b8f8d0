"""The examples, each run as in its README; they check their own results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.running import LIMIT_S, run

pytestmark = pytest.mark.timeout(LIMIT_S + 100)


@pytest.mark.slow
def test_one_team_borrows_and_the_other_reclaims() -> None:
    out = run("02-queues-and-borrowing")
    assert "all 200 steps were done once" in out


@pytest.mark.slow
@pytest.mark.smoke
def test_a_preempted_job_resumes_from_its_checkpoint() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    out = run("03-preempt-and-resume")
    assert re.search(r"all \d+ steps were done once: \d+ before the preemption, \d+ after", out)


@pytest.mark.slow
def test_the_first_job_ends_with_the_path_of_its_report(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    home = tmp_path / "home"
    try:
        out = run("01-first-job", MUSTER_HOME=str(home), MODEL="gpt:1m")  # `make demo` trains gpt:10m
    finally:
        script = Path(sys.executable).parent / "muster"
        subprocess.run([script, "local", "down", "--force"], check=False, env=os.environ | {"MUSTER_HOME": str(home)})
    report = Path(out.rstrip().splitlines()[-1])
    assert report.name == "report.html"
    page = report.read_text()
    assert len(page) < 3_000_000
    assert "http://" not in page.replace("http://www.w3.org/", "")


@pytest.mark.slow
def test_an_own_model_trains_on_two_ranks() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    assert re.search(r"60 steps, loss \d+\.\d+ -> \d+\.\d+", run("07-own-model"))


@pytest.mark.slow
def test_a_model_of_transformers_is_trained_saved_opened_and_trained_on() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torchx")
    out = run("08-hugging-face")
    assert "GPT2LMHeadModel with" in out
    assert re.search(r"loss \d+\.\d+ -> \d+\.\d+, then from the saved weights \d+\.\d+ -> \d+\.\d+", out)


@pytest.mark.slow
def test_advice_on_memory_is_applied_and_the_saving_is_shown() -> None:
    out = run("10-memory", CUDA_VISIBLE_DEVICES="")
    assert "peak 14.1 GiB -> 5.6 GiB: 8.5 GiB saved, at most 12.2 GiB were promised" in out


@pytest.mark.slow
def test_a_slower_version_and_its_commit_are_found() -> None:
    out = run("12-regression")
    assert len(re.findall(r"softmax\.\w+ +regression", out)) == 2
    assert re.search(r"softmax\.\w+ became slower with \w+ example: Change 3", out)


@pytest.mark.slow
def test_a_running_job_is_traced_and_its_slow_rank_is_found() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    out = run("16-straggler")
    assert len(re.findall(r"^trace: .*/rank-[01]\.attempt-0\.steps-\d+-\d+\.json\.gz$", out, re.MULTILINE)) == 2
    assert "Rank 1: data loading blocks the host" in " ".join(out.split())
    assert "found: rank 1, data-loading" in out


@pytest.mark.slow
def test_a_pipeline_has_the_losses_of_one_process() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torchx")
    assert re.search(r"20 steps, loss \d+\.\d+ -> \d+\.\d+; largest difference 0\.000", run("09-pipeline"))


@pytest.mark.slow
def test_a_torchx_project_runs_with_the_defaults_of_its_configuration() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchx")
    out = run("14-torchx-project")
    assert re.search(r"the ranks of sum-\w+ sum up to 1", out)
    assert "workspace.tar.gz" in out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed; on Debian: apt-get install curl")
def test_the_read_api_and_the_pages_of_the_dashboard_show_the_job_that_waits() -> None:
    out = run("15-dashboard")
    assert re.search(r"^waits research 1 QuotaExceeded needs 16 GPUs .* \d{4}-\d\d-\d\dT", out, re.MULTILINE)
    assert re.search(r"^research +local +\d+\.\d+ +GPU-hours", out, re.MULTILINE)
    assert len(re.findall(r"^/\S* +\d+ bytes$", out, re.MULTILINE)) == 8
