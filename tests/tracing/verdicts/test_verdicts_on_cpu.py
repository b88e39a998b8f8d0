"""Verdicts of ranks that share the CPUs of a host, where any may be preempted, and of pipelines without replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tracing.cpu_ranks import CpuRank, cpu_job

from muster.tracing.report import build
from muster.tracing.verdicts import Cause


def verdicts(folder: Path) -> list[tuple[tuple[int, ...], Cause]]:
    return [(verdict.ranks, verdict.cause) for verdict in build(folder).verdicts]


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_rank_that_sleeps_outside_of_all_annotations_in_each_step_is_named(tmp_path: Path, pipeline: bool) -> None:
    usual, slow = CpuRank(silent_ms=(2, 5, 1, 3)), CpuRank(silent_ms=(22, 25, 21, 23))
    assert verdicts(cpu_job(tmp_path, [usual, usual, slow, usual], pipeline=pipeline)) == [((2,), Cause.HOST_BLOCKED)]


def test_the_evidence_speaks_of_no_device(tmp_path: Path) -> None:
    usual = CpuRank()
    silent, loading = CpuRank(silent_ms=(22, 25, 21, 23)), CpuRank(annotated_ms=(22, 25, 21, 23))
    for slow, words in (
        (silent, "no operator runs and no annotation is open"),
        (loading, "while the host is in 'DataLoader'"),
    ):
        folder = tmp_path / words[:8].strip()
        (verdict,) = build(cpu_job(folder, [usual, usual, slow, usual])).verdicts
        assert words in verdict.evidence
        assert "device" not in (folder / "report/report.html").read_text().replace("device-width", "")


def test_a_rank_that_is_preempted_in_some_steps_is_not_named(tmp_path: Path) -> None:
    usual, preempted = CpuRank(silent_ms=(2, 5, 1, 3)), CpuRank(silent_ms=(70, 5, 30, 3))
    assert verdicts(cpu_job(tmp_path, [usual, usual, preempted, usual])) == []


def test_a_data_loader_that_is_slower_than_others_in_some_steps_is_not_named(tmp_path: Path) -> None:
    ranks = [CpuRank(annotated_ms=ms) for ms in ((2, 4, 1, 3), (1, 4, 2, 3), (9, 8, 6, 3), (12, 7, 10, 6))]
    assert verdicts(cpu_job(tmp_path, ranks)) == []


def test_a_data_loader_that_is_slower_in_most_steps_is_named(tmp_path: Path) -> None:
    ranks = [CpuRank(annotated_ms=ms) for ms in ((2, 4, 1, 3), (1, 4, 2, 3), (9, 11, 8, 9))]
    assert verdicts(cpu_job(tmp_path, ranks)) == [((2,), Cause.DATA_LOADING)]


def test_a_short_checkpoint_of_one_rank_in_some_steps_is_named(tmp_path: Path) -> None:
    saving = CpuRank(annotated_ms=(16, 0, 16, 0), annotation="save_checkpoint")
    assert verdicts(cpu_job(tmp_path, [CpuRank(), saving])) == [((1,), Cause.CHECKPOINT)]


def test_extra_work_of_a_rank_is_found_by_its_calls(tmp_path: Path) -> None:
    """4 products more, 8% of a step; the times of the calls differ as the load of the CPUs does."""
    times = (2.0, 2.3, 1.9)
    ranks = [CpuRank(work={"aten::mm": (10 + 4 * (i == 1), ms)}) for i, ms in enumerate(times)]
    assert verdicts(cpu_job(tmp_path, ranks)) == [((1,), Cause.EXTRA_KERNELS)]


STAGE = {"aten::mm": (10, 1.0), "aten::gelu": (4, 0.5), "aten::add_": (6, 0.5), "aten::sqrt": (2, 0.5)}


def test_extra_work_of_an_inner_stage_is_found_by_the_other_inner_stages(tmp_path: Path) -> None:
    extra = CpuRank(work={**STAGE, "aten::mm": (40, 1.0)})
    ranks = [CpuRank(work=STAGE), CpuRank(work=STAGE), extra, CpuRank(work=STAGE)]
    assert verdicts(cpu_job(tmp_path, ranks, pipeline=True)) == [((2,), Cause.EXTRA_KERNELS)]


def test_an_inner_stage_with_more_blocks_has_no_extra_work_but_is_unbalanced(tmp_path: Path) -> None:
    large = CpuRank(work={name: (3 * calls, ms) for name, (calls, ms) in STAGE.items()})
    ranks = [CpuRank(work=STAGE), CpuRank(work=STAGE), large, CpuRank(work=STAGE)]
    assert verdicts(cpu_job(tmp_path, ranks, pipeline=True)) == [((2,), Cause.STAGE_IMBALANCE)]


def test_a_stage_that_other_processes_slow_down_has_no_imbalance(tmp_path: Path) -> None:
    """Each call of the last stage takes four times as long, 32% of a step more than on the other stages."""
    slowed = CpuRank(work={name: (calls, 4 * ms) for name, (calls, ms) in STAGE.items()})
    assert verdicts(cpu_job(tmp_path, [CpuRank(work=STAGE)] * 3 + [slowed], pipeline=True)) == []


def test_a_stage_with_more_blocks_is_found_by_its_calls_if_its_cost_is_small(tmp_path: Path) -> None:
    """Stage 1 has twice the blocks, 8% of a step more than the mean; stage 0 is slowed down by other processes."""
    slowed = CpuRank(work={name: (calls, 1.8 * ms) for name, (calls, ms) in STAGE.items()})
    large = CpuRank(work={name: (2 * calls, ms) for name, (calls, ms) in STAGE.items()})
    assert verdicts(cpu_job(tmp_path, [slowed, large, CpuRank(work=STAGE)], pipeline=True)) == [
        ((1,), Cause.STAGE_IMBALANCE)
    ]


def test_beside_one_other_rank_recorded_shapes_tell_a_larger_input_from_a_slow_cpu(tmp_path: Path) -> None:
    usual, larger = (CpuRank(work={"aten::mm": (10, ms)}, sizes={"aten::mm": sizes}) for ms, sizes in SHAPED)
    (verdict,) = build(cpu_job(tmp_path / "larger", [larger, usual])).verdicts
    assert (verdict.cause, verdict.ranks) == (Cause.LARGER_INPUT, (0,))
    assert "aten::mm of 24 x 64, not 16 x 64" in verdict.evidence
    slower = CpuRank(work=larger.work, sizes=usual.sizes)
    assert build(cpu_job(tmp_path / "slower", [slower, usual])).verdicts == ()


SHAPED = ((2.0, [[16, 64], [64, 64]]), (3.0, [[24, 64], [64, 64]]))


def test_a_pause_is_said_to_be_before_the_operator_that_ends_it(tmp_path: Path) -> None:
    report = build(cpu_job(tmp_path, [CpuRank(), CpuRank(silent_ms=(22, 25, 21, 23))]))
    assert "the host is blocked before 'aten::mm'" in report.headline
