"""How well operators use the device, by the shapes that the profiler records; on recordings of an H200 and an A100."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import DATA, Event, kernel, launch, step, trace_text
from tests.tracing.run_folders import page_of, text_of

from muster.tracing.efficiency.advice import efficiency_advice
from muster.tracing.efficiency.device_limits import Precision, device_limits
from muster.tracing.efficiency.operator_cost import OperatorKind, operator_cost
from muster.tracing.efficiency.operator_efficiency import Efficiency, bound, efficiency, merge_efficiencies
from muster.tracing.read.operator_shapes import KNOWN_OPERATORS, OperatorShape, ShapedTensor
from muster.tracing.reader import read_trace
from muster.tracing.report import build
from muster.tracing.work.steps import step_table

__all__ = ["muster"]  # a fixture
H200 = DATA / "h200/pp.shapes/rank-0.json.gz"
A100 = DATA / "control.json.gz"
BF16, F32 = "c10::BFloat16", "float"


def efficiency_of(path: Path) -> Efficiency:
    trace = read_trace(path)
    found = efficiency(trace, step_table(trace))
    assert found is not None
    return found


def shape(operator: str, *tensors: tuple[tuple[int, ...], str], values: tuple[str, ...] = ()) -> OperatorShape:
    return OperatorShape(f"aten::{operator}", tuple(ShapedTensor(*tensor) for tensor in tensors), values)


def product(
    sizes: list[list[int]], dtype: str, *, kernel_name: str, us: float = 100.0, name: str = "aten::mm"
) -> list[Event]:
    """An operator with its launch and its kernel."""
    args = (("Input Dims", sizes), ("Input type", [dtype] * len(sizes)))
    return [
        Event(name, 0, 20, args=args),
        launch(1, 5),
        kernel(kernel_name, 50, us, launch=1),
    ]


def trace_of(path: Path, events: list[Event], device: str = "NVIDIA H200") -> Path:
    document = json.loads(trace_text([step(1, 0, 1000), *events]))
    path.write_text(json.dumps({**document, "deviceProperties": [{"name": device}]}))
    return path


def test_matrix_products_of_an_h200_reach_what_they_are_known_to() -> None:
    found = efficiency_of(H200)
    products = [row for row in found.operators if row.kind is OperatorKind.MATRIX_PRODUCT]
    assert found.device == "NVIDIA H200"
    assert 0.8 < found.covered_ns / found.compute_ns < 0.9
    assert len(products) >= 8
    for row in products:
        limit = bound(row, found.limits)
        assert row.precision is Precision.BFLOAT16
        assert 600e12 < row.flop_s < 800e12
        assert limit is not None
        assert (limit.by, 0.6 < limit.reached < 0.8) == ("compute", True)
    (first,) = [row for row in products if row.sizes == "(2048 x 1024) (1024 x 8192)"]
    assert (first.calls / found.steps, first.flops) == (16, 2 * 2048 * 1024 * 8192)
    added = next(row for row in found.operators if row.operator == "aten::add_")
    assert bound(added, found.limits).by == "memory"  # type: ignore[union-attr]
    assert 4.0e12 < added.bytes_s < 4.8e12
    assert efficiency_advice(found) == ()


def test_a_recording_in_tf32_with_odd_sizes_gets_both_advices_with_their_costs() -> None:
    tf32, unaligned = efficiency_advice(efficiency_of(A100))
    assert (tf32.reason, round(tf32.ms, 2), round(tf32.share, 3)) == ("tf32", 8.68, 0.184)
    assert "8.68 ms a step, 18.4% of compute" in tf32.sentence
    assert "bfloat16" in tf32.sentence
    assert (unaligned.reason, round(unaligned.ms, 2)) == ("unaligned", 5.70)
    assert "a size of 647, 30, 9,375 and 3 more, not a multiple of 8" in unaligned.sentence


def test_float32_without_tensor_cores_is_named(tmp_path: Path) -> None:
    events = product([[1024, 1024], [1024, 1024]], F32, kernel_name="ampere_sgemm_128x128_tn")
    (advice,) = efficiency_advice(efficiency_of(trace_of(tmp_path / "t.json", events)))
    assert (advice.reason, advice.ms, advice.share) == ("float32", 0.1, 1.0)
    assert "set_float32_matmul_precision" in advice.sentence


def test_a_vocabulary_that_is_no_multiple_of_8_is_named_with_the_next_one_that_is(tmp_path: Path) -> None:
    name = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_32x6_nn_align1>(Params)"
    events = product([[8192, 768], [768, 50257]], BF16, kernel_name=name, us=5000)
    (advice,) = efficiency_advice(efficiency_of(trace_of(tmp_path / "t.json", events)))
    assert advice.reason == "unaligned"
    assert "a size of 50,257, not a multiple of 8" in advice.sentence
    assert "to a multiple of 64 (50,304)" in advice.sentence


@pytest.mark.parametrize(("us", "reasons"), [(1000, []), (9000, ["unaligned"])])
def test_an_odd_number_of_columns_is_named_if_the_product_is_slow(
    tmp_path: Path, us: float, reasons: list[str]
) -> None:
    events = product([[8192, 768], [768, 50257]], BF16, kernel_name="sm80_xmma_gemm", us=us)
    advice = efficiency_advice(efficiency_of(trace_of(tmp_path / "t.json", events)))
    assert [one.reason for one in advice] == reasons


@pytest.mark.parametrize("us", [400, 4000])
def test_an_odd_number_of_rows_is_no_reason_for_advice(tmp_path: Path, us: float) -> None:
    events = product([[8191, 4096], [4096, 4096]], BF16, kernel_name="nvjet_sm90_tst_128x256", us=us)
    assert efficiency_advice(efficiency_of(trace_of(tmp_path / "t.json", events))) == ()


def test_attention_that_runs_as_separate_products_is_named(tmp_path: Path) -> None:
    events = product([[16, 512, 64], [16, 64, 512]], BF16, kernel_name="nvjet", name="aten::bmm")
    events.append(Event("aten::_scaled_dot_product_attention_math", 0, 30))
    (advice,) = efficiency_advice(efficiency_of(trace_of(tmp_path / "t.json", events)))
    assert (advice.reason, advice.ms) == ("math-attention", 0.1)


IMAGE, WEIGHT = ((2, 3, 8, 8), BF16), ((4, 3, 3, 3), BF16)
FLASH = "_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(
    ("operator", "flops", "moved"),
    [
        (shape("addmm", ((4,), BF16), ((2, 3), BF16), ((3, 4), BF16)), 48, 2 * (6 + 12 + 8)),
        (shape("bmm", ((5, 2, 3), F32), ((5, 3, 4), F32)), 240, 4 * 5 * 26),
        (shape("add_", ((10, 10), F32), ((10, 10), F32)), 0, 1200),
        (shape("copy_", ((10,), BF16), ((10,), F32)), 0, 60),
        (shape("fill_", ((10,), F32)), 0, 40),
        (shape("sum", ((10,), F32)), 0, 40),
        (
            shape(
                "cudnn_convolution",
                ((2, 3, 8, 8), BF16),
                ((4, 3, 3, 3), BF16),
                values=("", "", "[1, 1]", "[2, 2]", "[1, 1]"),
            ),
            2 * 2 * 4 * 16 * 27,
            2 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 16),
        ),
        (
            shape("convolution_backward", ((2, 4, 4, 4), BF16), IMAGE, WEIGHT),
            4 * 2 * 4 * 16 * 27,
            4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 16),
        ),
        (
            shape(
                "_scaled_dot_product_flash_attention", *3 * [((1, 2, 8, 4), BF16)], values=("", "", "", "0.", "False")
            ),
            4 * 2 * 8 * 8 * 4,
            2 * 4 * 64,
        ),
        (
            shape(
                "_scaled_dot_product_flash_attention", *3 * [((1, 2, 8, 4), BF16)], values=("", "", "", "0.", "True")
            ),
            2 * 2 * 8 * 8 * 4,
            2 * 4 * 64,
        ),
    ],
)
def test_operations_and_bytes_follow_from_shapes(operator: OperatorShape, flops: float, moved: float) -> None:
    cost = operator_cost(operator)
    assert cost is not None
    assert (cost.flops, cost.bytes) == (flops, moved)


@pytest.mark.parametrize(
    "operator",
    [
        shape("mm", ((2, 3), F32)),
        shape("mm", ((2, 3), F32), ((4, 5), F32)),
        shape("mm", ((2,), F32), ((2,), F32)),
        shape(FLASH, ((1, 2), F32)),
        shape("cudnn_convolution", IMAGE, WEIGHT),
        shape("cudnn_convolution", IMAGE, WEIGHT, values=("", "", "[0, 0]", "[0, 0]", "[1, 1]")),
        OperatorShape("aten::mm", (None, None)),
        OperatorShape("aten::view", (ShapedTensor((1,), F32),)),
    ],
)
def test_shapes_that_do_not_fit_have_no_cost(operator: OperatorShape) -> None:
    assert operator_cost(operator) is None


@pytest.mark.parametrize("dims", ['"x"', "[[-1, 2], [2, 3]]", "[[1e400]]", "{}", "[[[1, 2]]]", "[[true]]", "null"])
def test_sizes_of_any_form_are_read(tmp_path: Path, dims: str) -> None:
    path = trace_of(tmp_path / "t.json", product([[1, 2], [2, 3]], F32, kernel_name="gemm"))
    path.write_text(path.read_text().replace("[[1, 2], [2, 3]]", dims))
    assert [row.calls for row in efficiency_of(path).operators] == []


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H200", 4.8),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA A100-SXM4-80GB", 2.039),
        ("NVIDIA A100-SXM4-40GB", 1.555),
        ("Tesla V100-SXM2-32GB", 0.9),
        ("AMD Instinct MI300X", 5.3),
    ],
)
def test_the_limits_of_a_device_are_found_by_its_name(name: str, tera: float) -> None:
    limits = device_limits(name)
    assert limits is not None
    assert limits.bytes_s == tera * 1e12


def test_an_unknown_device_is_named_and_nothing_is_compared_with_limits(tmp_path: Path) -> None:
    events = product([[1024, 1024], [1024, 1024]], BF16, kernel_name="gemm")
    report = build(trace_of(tmp_path / "t.json", events, device="Abacus 3"))
    assert report.efficiency is not None
    (row,) = report.efficiency.operators
    assert bound(row, report.efficiency.limits) is None
    assert "The limits of this device (Abacus 3) are not known." in page_of(report)


def test_without_shapes_page_and_console_say_how_to_record_them(tmp_path: Path, muster: Muster) -> None:
    report = build(DATA / "small/copy", tmp_path)
    assert report.efficiency is None
    for shown in (page_of(report), text_of(report), muster("trace", "analyze", str(DATA / "small/copy")).out):
        assert "Shapes were not recorded" in shown
        assert "record_shapes=True" in " ".join(shown.split())


def test_page_console_and_json_show_the_efficiency(tmp_path: Path, muster: Muster) -> None:
    report = build(H200, tmp_path)
    assert '<section id="efficiency">' in page_of(report)
    for shown in (page_of(report), text_of(report, width=140), muster("trace", "analyze", str(H200)).out):
        assert "(2048 x 1024) (1024 x 8192)" in shown
    found = json.loads(muster("trace", "analyze", str(H200), "--json").out)["efficiency"]
    assert found["limits"]["gb_s"] == 4800
    (row,) = [row for row in found["operators"] if row["sizes"] == "(2048 x 1024) (1024 x 8192)"]
    assert (row["operator"], row["calls_per_step"], row["bound_by"]) == ("aten::mm", 16, "compute")
    assert row["tflop_s"] == pytest.approx(663, abs=1)
    advice = json.loads(muster("trace", "analyze", str(A100), "--json").out)["efficiency"]["advice"]
    assert [one["reason"] for one in advice] == ["tf32", "unaligned"]


def test_ranks_are_added_up() -> None:
    one = efficiency_of(H200)
    both = merge_efficiencies([one, one])
    assert both is not None
    assert (both.steps, both.compute_ns, both.flops) == (2 * one.steps, 2 * one.compute_ns, 2 * one.flops)
    assert [row.time_ns for row in both.operators] == [2 * row.time_ns for row in one.operators]
    assert merge_efficiencies([one, replace(one, device="other")]) is None


def test_work_on_the_cpu_has_times_and_no_limits() -> None:
    found = efficiency_of(DATA / "pipeline_0.json.gz")
    assert (found.device, found.limits, efficiency_advice(found)) == (None, None, ())
    assert {"aten::mm", "aten::addmm"} <= {row.operator for row in found.operators}


def test_operators_that_are_read_have_a_cost() -> None:
    tensors = (ShapedTensor((4, 4, 4, 4), F32),) * 4
    with_batch = {"aten::bmm", "aten::baddbmm"}
    for name in KNOWN_OPERATORS:
        given = tensors if name not in with_batch else (ShapedTensor((4, 4, 4), F32),) * 4
        given = (ShapedTensor((4, 4), F32),) * 4 if name.endswith("mm") and name not in with_batch else given
        assert operator_cost(OperatorShape(name, given, ("[1, 1]",) * 16)) is not None, name
