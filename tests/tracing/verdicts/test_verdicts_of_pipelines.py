"""Verdicts of simulated pipelines on GPUs: 1F1B with hosts that run ahead, and kernels that wait for other stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tracing.gpu_ranks import Host, Stage, one_f_one_b
from tests.tracing.kineto import DATA

from muster.tracing.report import Report, build
from muster.tracing.verdicts import Cause


def pipeline(folder: Path, stages: int, at: int = 0, fault: Stage | None = None) -> Report:
    """The report of a pipeline with one stage that has a fault."""
    ranks = [Stage()] * stages
    ranks[at] = fault or ranks[at]
    return build(one_f_one_b(folder, ranks), with_critical_path=True)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_without_a_fault_has_no_verdict(tmp_path: Path, stages: int) -> None:
    assert pipeline(tmp_path, stages).verdicts == ()


@pytest.mark.parametrize(("stages", "at"), [(2, 0), (2, 1), (4, 0), (4, 1), (4, 3)])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Stage(host=Host("data", 30)), Cause.DATA_LOADING),
        (Stage(host=Host("save_checkpoint", 30)), Cause.CHECKPOINT),
        (Stage(host=Host("", 30)), Cause.HOST_BLOCKED),
        (Stage(forward_ms=4.5), Cause.STAGE_IMBALANCE),
    ],
)
def test_the_first_verdict_names_the_stage_with_the_fault(
    tmp_path: Path, stages: int, at: int, fault: Stage, cause: Cause
) -> None:
    report = pipeline(tmp_path, stages, at, fault)
    assert [(verdict.ranks, verdict.stage, verdict.cause) for verdict in report.verdicts] == [((at,), at, cause)]


@pytest.mark.parametrize(("stages", "at"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_kernels_before_the_first_forward_pass_of_a_stage_are_no_imbalance(
    tmp_path: Path, stages: int, at: int
) -> None:
    """The ends of a pipeline have no stage with the same work: what runs before the schedule tells it from blocks."""
    (verdict,) = pipeline(tmp_path, stages, at, Stage(extra=16)).verdicts
    assert (verdict.ranks, verdict.stage, verdict.cause) == ((at,), at, Cause.EXTRA_KERNELS)
    assert verdict.cost_ms == pytest.approx(48, rel=0.02)
    assert "before the first forward pass" in verdict.evidence


def test_extra_kernels_of_an_inner_stage_are_no_imbalance(tmp_path: Path) -> None:
    (verdict,) = pipeline(tmp_path, 4, 2, Stage(extra=8)).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), Cause.EXTRA_KERNELS)
    assert verdict.cost_ms == pytest.approx(24)
    assert "extra_gemm" in verdict.evidence


@pytest.mark.parametrize(("at", "ranks"), [(0, (0, 1)), (1, (1, 2))])
def test_a_slow_link_between_two_stages_is_named(tmp_path: Path, at: int, ranks: tuple[int, int]) -> None:
    """8 MiB in 6 ms, 1.4 GB/s; between the other stages in 0.2 ms."""
    (verdict,) = pipeline(tmp_path, 4, at, Stage(transfer_ms=6)).verdicts
    assert (verdict.ranks, verdict.cause) == (ranks, Cause.SLOW_NETWORK)
    assert "takes 6.00 ms (1.4 GB/s), between others 200 µs" in verdict.evidence


def test_the_only_link_of_two_stages_is_slow_by_its_bandwidth(tmp_path: Path) -> None:
    (verdict,) = pipeline(tmp_path, 2, 0, Stage(transfer_ms=6)).verdicts
    assert (verdict.ranks, verdict.cause) == ((0, 1), Cause.SLOW_NETWORK)


def test_a_link_with_a_low_bandwidth_has_a_verdict_from_a_tenth_of_a_step(tmp_path: Path) -> None:
    """8 MiB in 1.5 ms, 5.6 GB/s, are 14% of a step; in 0.6 ms, 14 GB/s, 6%. So was NCCL over TCP on two H200: 22%."""
    (verdict,) = pipeline(tmp_path / "slow", 2, 0, Stage(transfer_ms=1.5)).verdicts
    assert (verdict.ranks, verdict.cause) == ((0, 1), Cause.SLOW_NETWORK)
    assert pipeline(tmp_path / "usual", 2, 0, Stage(transfer_ms=0.6)).verdicts == ()


@pytest.mark.parametrize(
    ("fault", "ranks", "cause", "cost_ms"),
    [
        ("extra-work", (1,), Cause.EXTRA_KERNELS, 147),
        ("unbalanced", (1,), Cause.STAGE_IMBALANCE, 36.2),
        ("slow-network", (0, 1), Cause.SLOW_NETWORK, 14.5),
    ],
)
def test_two_steps_of_a_pipeline_on_two_h200_have_the_verdict_of_their_fault(
    tmp_path: Path, fault: str, ranks: tuple[int, ...], cause: Cause, cost_ms: float
) -> None:
    (verdict,) = build(DATA / "h200" / f"pp.{fault}", out=tmp_path).verdicts
    assert (verdict.ranks, verdict.cause) == (ranks, cause)
    assert verdict.cost_ms == pytest.approx(cost_ms, rel=0.02)


def test_the_critical_path_of_a_pipeline_goes_through_the_stage_with_the_fault(tmp_path: Path) -> None:
    path = pipeline(tmp_path, 4, 1, Stage(host=Host("data", 30))).critical_path
    assert path is not None
    assert ("host", "data", 1, 30.0) in [(part.kind, part.name, part.rank, round(part.ms, 2)) for part in path.parts]
    assert not any(part.kind == "communication" for part in path.parts)
