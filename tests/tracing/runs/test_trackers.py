"""Files of experiment trackers in a run folder: found by name, linked in the report, listed by `describe`."""

from __future__ import annotations

from pathlib import Path

from tests.tracing.run_folders import page_of, run_folder

from muster.tracing.report import build, load
from muster.tracing.runs.trackers import TrackerFiles, find_trackers


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_each_tool_is_found_once_per_folder_with_the_command_that_shows_it(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    for number in range(2):
        write(run / "tb" / f"events.out.tfevents.1.host.{number}")
    write(run / "mlruns" / "0" / "meta.yaml")
    write(run / "wandb" / "offline-run-20261123_140000-abc" / "run-abc.wandb")
    assert find_trackers(run) == (
        TrackerFiles("MLflow", f"{run}/mlruns", f"mlflow ui --backend-store-uri '{run}/mlruns'"),
        TrackerFiles("TensorBoard", f"{run}/tb", f"tensorboard --logdir '{run}/tb'"),
        TrackerFiles(
            "Weights & Biases",
            f"{run}/wandb/offline-run-20261123_140000-abc",
            f"wandb sync '{run}/wandb/offline-run-20261123_140000-abc'",
        ),
    )


def test_links_musters_own_folders_and_names_for_a_terminal_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "events.out.tfevents.1")
    run = tmp_path / "run"
    write(run / "checkpoints" / "events.out.tfevents.1")
    write(run / "submission" / "code" / "runs" / "events.out.tfevents.1")  # of the folder, as it was before
    write(run / "bad\x1b[31m" / "events.out.tfevents.1")
    (run / "linked").symlink_to(tmp_path / "elsewhere")
    (run / "events.out.tfevents.2").symlink_to(tmp_path / "elsewhere" / "events.out.tfevents.1")
    assert find_trackers(run) == ()
    assert find_trackers(tmp_path / "missing") == ()


def test_at_most_twenty_are_named(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"tb-{number:02}" / "events.out.tfevents.1")
    assert [Path(found.folder).name for found in find_trackers(tmp_path)] == [f"tb-{number:02}" for number in range(20)]


def test_the_report_links_the_folder_and_shows_the_command(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    write(run / "tb <b>" / "events.out.tfevents.1")
    report = build(run)
    page = page_of(report)
    assert f'<a href="{(run / "tb <b>").as_uri()}">TensorBoard</a>' in page
    assert "tb <b>" not in page
    assert load(Path(str(report.page))).trackers == report.trackers != ()
