from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulate.recordings import FORMS

from muster.errors import InvalidTrace
from muster.simulate import TraceJob, TraceNode, WorkloadAssumptions, read_jobs, read_nodes, read_workload
from muster.simulate.workload import JobFactory

NODES = "name,gpus,cpu_milli,memory_mib\nn0,8,1000,2000\n"
JOBS = "name,submit_s,runtime_s,pods,gpus_per_pod\na,0,10,1,8\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_plain_row_with_all_columns(tmp_path: Path) -> None:
    optional = "min_pods,cpu_milli,memory_mib,queue,priority,max_runtime_s,gpu_type,topology"
    header = f"name,submit_s,runtime_s,pods,gpus_per_pod,{optional}"
    path = put(tmp_path, "j.csv", f"{header}\nbig job,1.5,20,4,8,2,500,64,red,-3,99.5,h200|b200,rack\n")
    assert read_jobs(path).rows == (
        TraceJob("big job", 1.5, 20.0, 4, 8, 2, 500, 64, "red", -3, 100, ("h200", "b200"), "rack"),
    )


def test_columns_may_be_in_any_order_with_others_between(tmp_path: Path) -> None:
    path = put(tmp_path, "n.csv", "\ufeffrack,memory_mib,colour,name,cpu_milli,gpus\nr1,2000,red,n0,1000,8\n")
    assert read_nodes(path).rows == (TraceNode("n0", 8, 1000, 2000, "", "r1", ""),)


def test_a_fraction_of_a_gpu_is_marked_and_models_are_alternatives(tmp_path: Path) -> None:
    path = put(tmp_path, "p.csv", f"{OPENB}a,1,2,1,460,V100M16|V100M32,LS,Running,10,50,20\n")
    row = read_jobs(path).rows[0]
    assert (row.fractional_gpu, row.gpus_per_pod, row.gpu_types) == (True, 1, ("V100M16", "V100M32"))
    assert (row.submit_s, row.runtime_s) == (10.0, 30.0)


def test_a_task_that_was_never_scheduled_runs_for_the_time_that_it_existed(tmp_path: Path) -> None:
    row = read_jobs(put(tmp_path, "p.csv", f"{OPENB}a,1,2,0,0,,LS,Pending,10,50,\n")).rows[0]
    assert (row.never_scheduled, row.runtime_s, row.fractional_gpu) == (True, 40.0, False)


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("a,0,10,1", ("5", "4")),
        (",0,10,1,8", ("name",)),
        ("a,soon,10,1,8", ("submit_s", "'soon'")),
        ("a,0,-1,1,8", ("runtime_s", "1e+11", "'-1'")),
        ("a,0,nan,1,8", ("runtime_s", "'nan'")),
        ("a,0,inf,1,8", ("runtime_s", "'inf'")),
        ("a,0,10,0,8", ("pods", "from 1 to 100000", "'0'")),
        ("a,0,10,1.5,8", ("pods", "from 1 to 100000", "'1.5'")),
        ("a,0,10,1,99999999", ("gpus_per_pod", "from 0 to 10000", "'99999999'")),
        ("ok,0,10,1,8", ("name", "'ok'", "line 2")),
    ],
)
def test_an_invalid_row_is_reported_with_its_line_column_and_value(
    line: str, reported: tuple[str, ...], tmp_path: Path
) -> None:
    path = put(tmp_path, "j.csv", JOBS.replace("\na,", "\nok,") + line + "\n")
    table = read_jobs(path)
    assert [row.name for row in table.rows] == ["ok"]
    (invalid,) = table.invalid_rows
    assert (invalid.line, [text for text in reported if text not in invalid.reason]) == (3, [])


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("a,1,2,1,1000,,LS,Running,10,5,", ("deletion_time", "creation_time 10", "5")),
        ("a,1,2,1,1000,,LS,Running,10,15,20", ("deletion_time", "scheduled_time 20", "15")),
        ("a,1,2,1,2000,,LS,Running,10,50,20", ("gpu_milli", "from 0 to 1000", "'2000'")),
    ],
)
def test_an_invalid_row_of_openb_is_reported_with_its_column_and_value(
    line: str, reported: tuple[str, ...], tmp_path: Path
) -> None:
    (invalid,) = read_jobs(put(tmp_path, "p.csv", f"{OPENB}{line}\n")).invalid_rows
    assert (invalid.line, [text for text in reported if text not in invalid.reason]) == (2, [])


@pytest.mark.parametrize(
    ("column", "invalid"), [("min_pods", ["3", "x"]), ("max_runtime_s", ["0", "x"]), ("priority", ["x"])]
)
def test_optional_columns_are_checked(column: str, invalid: list[str], tmp_path: Path) -> None:
    rows = "".join(f"{number},0,10,1,8,{value}\n" for number, value in enumerate(["1", *invalid]))
    table = read_jobs(put(tmp_path, "j.csv", f"name,submit_s,runtime_s,pods,gpus_per_pod,{column}\n{rows}"))
    assert [row.name for row in table.rows] == ["0"]
    assert all(row.reason.startswith(column) for row in table.invalid_rows)
    assert len(table.invalid_rows) == len(invalid)


def test_invalid_rows_are_an_error_with_their_number_unless_they_are_skipped(tmp_path: Path) -> None:
    nodes = put(tmp_path, "n.csv", NODES + "n1,x,1,1\n")
    jobs = put(tmp_path, "j.csv", JOBS + "".join(f"b{i},-1,1,1,1\n" for i in range(12)))
    with pytest.raises(InvalidTrace) as refused:
        read_workload(nodes, jobs)
    text = str(refused.value)
    assert "n.csv: 1 of 2 rows" in text
    assert "j.csv: 12 of 13 rows" in text
    assert "line 3: submit_s" in text
    assert "and 2 more" in text
    workload = read_workload(nodes, jobs, skip_invalid=True)
    assert (len(workload.nodes), len(workload.jobs), len(workload.invalid_rows)) == (1, 1, 13)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: the header must have the columns of jobs"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,2,1,1000\n", "must have the columns of jobs"),
        ("name,submit_s,runtime_s,pods,gpu_per_pod\n", "line 1: column gpus_per_pod is missing; is it 'gpu_per_pod'"),
        ("name,submit_s,pods,gpus_per_pod\n", "line 1: column runtime_s is missing"),
        ("name,submit_s,runtime_s,pods,gpus_per_pod\n", "only a header"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ('name,submit_s,runtime_s,pods,gpus_per_pod\n"a,0,10,1,8\n', "not CSV"),
        (JOBS.replace("\na,0", "\na,-1"), "all 1 rows of jobs are invalid"),
    ],
    ids=["empty", "no times", "a typing error", "one column missing", "no rows", "binary", "open quote", "all bad"],
)
def test_an_invalid_file_is_refused_as_a_whole(text: str | bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=reason):
        read_workload(put(tmp_path, "n.csv", NODES), put(tmp_path, "j.csv", text), skip_invalid=True)


def test_a_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=r"nope\.csv: cannot be read: No such file"):
        read_nodes(tmp_path / "nope.csv")


def test_both_formats_are_read_completely() -> None:
    for nodes, jobs in FORMS.values():
        assert read_workload(nodes, jobs).invalid_rows == ()


def test_a_row_may_be_of_another_kind_which_has_one_size_and_writes_no_checkpoints(tmp_path: Path) -> None:
    header = "name,submit_s,runtime_s,pods,gpus_per_pod,min_pods,kind\n"
    rows = read_jobs(put(tmp_path, "j.csv", f"{header}a,0,10,2,8,,JobSet\nb,0,10,2,8,1,\n")).rows
    assert [row.kind for row in rows] == ["JobSet", "TrainingJob"]
    behaviors = [JobFactory({}, WorkloadAssumptions()).behavior(row) for row in rows]
    assert [one.checkpoint_every_s for one in behaviors] == [None, 1800.0]
    bad = read_jobs(put(tmp_path, "j.csv", f"{header}a,0,10,2,8,1,Job\nb,0,10,2,8,,a b\n")).invalid_rows
    assert ["min_pods" in str(bad[0]), "kind must be" in str(bad[1])] == [True, True]
