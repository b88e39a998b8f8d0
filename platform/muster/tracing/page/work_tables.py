"""The tables of a report's page: kernels, communication with its waiting, operators, and operators by shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.efficiency.operator_efficiency import Efficiency, OperatorEfficiency, bound
from muster.tracing.formatting import format_number, format_percent, format_seconds
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.operator_stats import OperatorStats, short_name
from muster.tracing.work.work_kinds import COMMUNICATION_NAME, FRAME_NAME, kernel_type

MAX_ROWS = 15
MAX_SHAPES = 20
NOTABLE_SHARE = 0.005  # of compute, for an operator that is listed


@dataclass(frozen=True, slots=True)
class TableRow:
    """A name with its full form as a tooltip, parts of a bar (CSS class, percent), and values."""

    name: str
    full: str
    bars: tuple[tuple[str, float], ...]
    values: tuple[str, ...]
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Rows with bars; `legend` names the colours of bars with several."""

    title: str
    hint: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    anchor: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def work_tables(report: Report) -> list[WorkTable]:
    """Kernels that work, collectives with transfer and waiting, CPU operators."""
    kernels_s = sum(row.trace.kernels_s for row in report.traces)
    operators_s = sum(row.trace.operators_s for row in report.traces)
    tables = [
        _kernels(report, kernels_s),
        _communication(report),
        WorkTable(
            "Top operators",
            "CPU operators by self time, without the operators they call; "
            f"sum of all traces: {format_seconds(operators_s)}.",
            ("share", "total", "calls", "mean"),
            _operator_rows(enumerate(report.operators), operators_s, "operator"),
        ),
    ]
    return [table for table in tables if table.rows]


def _kernels(report: Report, total_s: float) -> WorkTable:
    """Without communication, which has a table of its own."""
    working = [(i, op) for i, op in enumerate(report.kernels) if not _communicates(op.name)]
    hint = (
        "Device work that computes or copies, by duration; shares are of all device work, sum of all traces: "
        f"{format_seconds(total_s)}."
    )
    return WorkTable(
        "Top kernels", hint, ("share", "total", "calls", "mean"), _operator_rows(working, total_s, "kernel")
    )


def _communicates(name: str) -> bool:
    return kernel_type(name) is KernelType.COMMUNICATION


def _operator_rows(numbered: Iterable[tuple[int, OperatorStats]], total_s: float, anchor: str) -> tuple[TableRow, ...]:
    shown = list(numbered)[:MAX_ROWS]
    longest = max((op.total_ns for _, op in shown), default=0) or 1
    return tuple(
        TableRow(
            short_name(op.name, 56),
            op.name,
            ((_style(op.name, anchor), 100 * op.total_ns / longest),),
            (
                format_percent(op.total_ns / 1e9 / total_s) if total_s > 0 else "",
                format_seconds(op.total_ns / 1e9),
                f"{op.calls:,}",
                format_seconds(op.mean_ns / 1e9),
            ),
            f"{anchor}-{i + 1}",
        )
        for i, op in shown
    )


def _style(name: str, anchor: str) -> str:
    """The CSS class of a bar, by the kind of work of its name."""
    if anchor == "kernel":
        return "memory" if kernel_type(name) is KernelType.MEMORY else "compute"
    return "communication" if COMMUNICATION_NAME.match(name) else "other" if FRAME_NAME.match(name) else "compute"


def _communication(report: Report) -> WorkTable:
    """Collectives matched between ranks, divided; else the kernels with their whole time."""
    if report.collective_times:
        longest = max(one.transfer_ns + one.waiting_ns for one in report.collective_times) or 1
        rows = tuple(
            TableRow(
                one.name,
                one.name,
                (
                    ("communication", 100 * one.transfer_ns / longest),
                    ("waiting", 100 * one.waiting_ns / longest),
                ),
                (
                    format_seconds(one.transfer_ns / 1e9),
                    format_seconds(one.waiting_ns / 1e9),
                    f"{one.calls:,}",
                    format_seconds(one.transfer_ns / 1e9 / max(one.calls, 1)),
                ),
            )
            for one in report.collective_times[:MAX_ROWS]
        )
        hint = (
            "Collectives of all ranks in the common steps, also beside compute. A rank waits until the last one has "
            "come; the transfer is the rest."
        )
        legend = (("communication", "transfer"), ("waiting", "waiting for the last rank"))
        return WorkTable(
            "Collectives", hint, ("transfer", "waiting", "calls", "mean transfer"), rows, "collectives", legend
        )
    found = [op for op in report.kernels if _communicates(op.name)][:MAX_ROWS]
    longest = max((op.total_ns for op in found), default=0) or 1
    rows = tuple(
        TableRow(
            short_name(op.name, 56),
            op.name,
            (("waiting", 100 * op.total_ns / longest),),
            (format_seconds(op.total_ns / 1e9), f"{op.calls:,}", format_seconds(op.mean_ns / 1e9)),
        )
        for op in found
    )
    hint = "Kernels of communication by duration, with the time in which they wait for other ranks."
    return WorkTable("Communication", hint, ("total", "calls", "mean"), rows, "collectives")


SHAPES_NOT_RECORDED = (
    "Shapes were not recorded: they show how efficient operators are. To record them, use "
    "torch.profiler.profile(record_shapes=True)."
)


def efficiency_table(report: Report) -> WorkTable | None:
    """Operators by shape; None without shapes."""
    found = report.efficiency
    if found is None or not found.operators:
        return None
    rows = shown_operators(found)
    longest = max(row.time_ns for row in rows) or 1
    return WorkTable(
        "Efficiency of operators",
        efficiency_hint(found),
        ("shape", *shape_columns(found)),
        tuple(
            TableRow(
                row.operator.removeprefix("aten::"),
                row.kernel,
                (("compute", 100 * row.time_ns / longest),),
                (row.sizes, *shape_values(found, row)),
            )
            for row in rows
        ),
        "efficiency",
    )


def shown_operators(found: Efficiency) -> Sequence[OperatorEfficiency]:
    """The longest, without those that hardly count."""
    rows = found.operators[:MAX_SHAPES]
    return [row for row in rows if row.time_ns >= NOTABLE_SHARE * found.compute_ns] or rows[:1]


def shape_columns(found: Efficiency) -> tuple[str, ...]:
    """The names of `shape_values`; what bounds an operator is known only of a device with known limits."""
    columns = ("type", "time a step", "calls a step", "TFLOP/s", "GB/s")
    return columns if found.limits is None else (*columns, "bound by", "of the limit")


def efficiency_hint(found: Efficiency) -> str:
    """What the numbers are beside: the device and its limits, and the part of compute that they cover."""
    covered = format_percent(found.covered_ns / found.compute_ns) if found.compute_ns else "none"
    part = f"Operators of known cost take {covered} of compute."
    if found.device is None:
        return f"{part} On the CPU, limits are not known."
    limits = found.limits
    if limits is None:
        return f"{part} The limits of this device ({found.device}) are not known."
    peaks = ", ".join(f"{format_number(peak / 1e12)} TFLOP/s in {name}" for name, peak in limits.flop_s.items())
    return (
        f"{part} The limits of {found.device}: {peaks}, {format_number(limits.bytes_s / 1e12)} TB/s. An operator is "
        "bound by what takes longer at these limits; bytes are those of inputs and outputs, each moved once, so that "
        "caches can make more than 100%."
    )


def shape_values(found: Efficiency, row: OperatorEfficiency) -> tuple[str, ...]:
    """The values of `shape_columns`."""
    limit = bound(row, found.limits)
    values = (
        str(row.precision or row.dtype) if row.flops else row.dtype,
        format_seconds(row.time_ns / 1e9 / found.steps),
        format_number(row.calls / found.steps),
        format_number(row.flop_s / 1e12) if row.flops else "–",
        format_number(row.bytes_s / 1e9),
    )
    if found.limits is None:
        return values
    return (*values, "–", "–") if limit is None else (*values, limit.by, format_percent(limit.reached))
