from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulate.recordings import FORMS

from muster.errors import InvalidTrace
from muster.simulate import TraceJob, TraceNode, read_jobs, read_nodes, read_workload

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


def test_columns_may_come_in_any_order_with_others_between(tmp_path: Path) -> None:
    path = put(tmp_path, "n.csv", "\ufeffrack,memory_mib,colour,name,cpu_milli,gpus\nr1,2000,red,n0,1000,8\n")
    assert read_nodes(path).rows == (TraceNode("n0", 8, 1000, 2000, "", "r1", ""),)


def test_a_fraction_of_a_gpu_is_marked_and_models_are_alternatives(tmp_path: Path) -> None:
    path = put(tmp_path, "p.csv", f"{OPENB}a,1,2,1,460,V100M16|V100M32,LS,Running,10,50,20\n")
    row = read_jobs(path).rows[0]
    assert (row.fractional_gpu, row.gpus_per_pod, row.gpu_types) == (True, 1, ("V100M16", "V100M32"))
    assert (row.submit_s, row.runtime_s) == (10.0, 30.0)


def test_a_task_that_was_never_scheduled_runs_for_as_long_as_it_existed(tmp_path: Path) -> None:
    row = read_jobs(put(tmp_path, "p.csv", f"{OPENB}a,1,2,0,0,,LS,Pending,10,50,\n")).rows[0]
    assert (row.never_scheduled, row.runtime_s, row.fractional_gpu) == (True, 40.0, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,0,10,1", "4 columns, the header has 5"),
        (",0,10,1,8", "name is empty"),
        ("a,soon,10,1,8", "submit_s 'soon' is not a number"),
        ("a,0,-1,1,8", "runtime_s '-1' is not between 0 and 1e+11"),
        ("a,0,nan,1,8", "runtime_s 'nan' is not between 0 and 1e+11"),
        ("a,0,inf,1,8", "runtime_s 'inf' is not between 0 and 1e+11"),
        ("a,0,10,0,8", "pods '0' is not a whole number between 1 and 100000"),
        ("a,0,10,1.5,8", "pods '1.5' is not a whole number between 1 and 100000"),
        ("a,0,10,1,99999999", "gpus_per_pod '99999999' is not a whole number between 0 and 10000"),
        ("ok,0,10,1,8", "the name 'ok' is that of line 2; give every row its own"),
    ],
)
def test_a_bad_row_is_named_by_line_and_reason(line: str, reason: str, tmp_path: Path) -> None:
    path = put(tmp_path, "j.csv", JOBS.replace("\na,", "\nok,") + line + "\n")
    table = read_jobs(path)
    assert [row.name for row in table.rows] == ["ok"]
    assert [str(row) for row in table.invalid_rows] == [f"line 3: {reason}"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a,1,2,1,1000,,LS,Running,10,5,", "deletion_time 5 is before creation_time 10"),
        ("a,1,2,1,1000,,LS,Running,10,15,20", "deletion_time 15 is before scheduled_time 20"),
        ("a,1,2,1,2000,,LS,Running,10,50,20", "gpu_milli '2000' is not a whole number between 0 and 1000"),
    ],
)
def test_a_bad_row_of_openb_is_named_too(line: str, reason: str, tmp_path: Path) -> None:
    assert [str(row) for row in read_jobs(put(tmp_path, "p.csv", f"{OPENB}{line}\n")).invalid_rows] == [
        f"line 2: {reason}"
    ]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("min_pods", "min_pods 3 is above pods 1; write at most 1"),
        ("max_runtime_s", ""),
        ("priority", ""),
    ],
)
def test_optional_columns_are_checked(extra: str, reason: str, tmp_path: Path) -> None:
    path = put(tmp_path, "j.csv", f"name,submit_s,runtime_s,pods,gpus_per_pod,{extra}\na,0,10,1,8,3\n")
    assert [row.reason for row in read_jobs(path).invalid_rows] == ([reason] if reason else [])
    path = put(tmp_path, "k.csv", f"name,submit_s,runtime_s,pods,gpus_per_pod,{extra}\na,0,10,1,8,x\n")
    assert len(read_jobs(path).invalid_rows) == 1


def test_bad_rows_are_refused_with_a_count_unless_they_are_to_be_skipped(tmp_path: Path) -> None:
    nodes = put(tmp_path, "n.csv", NODES + "n1,x,1,1\n")
    jobs = put(tmp_path, "j.csv", JOBS + "".join(f"b{i},-1,1,1,1\n" for i in range(12)))
    with pytest.raises(InvalidTrace) as refused:
        read_workload(nodes, jobs)
    text = str(refused.value)
    assert "n.csv: 1 of 2 rows cannot be read" in text
    assert "j.csv: 12 of 13 rows cannot be read; mend them or pass --skip-bad" in text
    assert "line 3: submit_s '-1'" in text
    assert "and 2 more" in text
    workload = read_workload(nodes, jobs, skip_invalid=True)
    assert (len(workload.nodes), len(workload.jobs), len(workload.invalid_rows)) == (1, 1, 13)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has not the columns of jobs"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,2,1,1000\n", "has not the columns of jobs"),
        (
            "name,submit_s,runtime_s,pods,gpu_per_pod\n",
            "line 1: gpus_per_pod is missing; did you mean it by 'gpu_per_pod'",
        ),
        (
            "name,submit_s,pods,gpus_per_pod\n",
            "line 1: runtime_s is missing .columns of jobs: name,submit_s,runtime_s,",
        ),
        ("name,submit_s,runtime_s,pods,gpus_per_pod\n", "only a header"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ('name,submit_s,runtime_s,pods,gpus_per_pod\n"a,0,10,1,8\n', "not CSV"),
        (JOBS.replace("\na,0", "\na,-1"), "none of its 1 rows can be read"),
    ],
    ids=["empty", "no times", "a slip of the pen", "a column too few", "no rows", "binary", "open quote", "all bad"],
)
def test_a_file_that_makes_no_sense_is_refused_whole(text: str | bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=reason):
        read_workload(put(tmp_path, "n.csv", NODES), put(tmp_path, "j.csv", text), skip_invalid=True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=r"nope\.csv: cannot be read: No such file"):
        read_nodes(tmp_path / "nope.csv")


def test_both_forms_read_whole() -> None:
    for nodes, jobs in FORMS.values():
        assert read_workload(nodes, jobs).invalid_rows == ()
