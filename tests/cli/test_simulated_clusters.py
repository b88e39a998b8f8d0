"""simulate and replay."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Muster

from muster.engine import encode_snapshot
from muster.model import (
    FlavorInfo,
    Gang,
    NodeInfo,
    QueueInfo,
    Quota,
    Resources,
    Role,
    RolePlacement,
    RunningGang,
    Snapshot,
)

GPU = "nvidia.com/gpu"
KEYS = [
    "policy", "jobs", "completed", "refused", "wait_s", "jct_s", "gpu_utilization", "fragmentation", "preemptions",
    "lost_work_s", "makespan_s", "wall_s", "time_s",
]  # fmt: skip


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    """Two nodes; three jobs, of which two run together and the third waits for both."""
    (tmp_path / "nodes.csv").write_text("name,gpus,cpu_milli,memory_mib\nn1,8,64000,1000\nn2,8,64000,1000\n")
    (tmp_path / "jobs.csv").write_text(
        "name,submit_s,runtime_s,pods,gpus_per_pod\nfirst,0,100,1,8\nsecond,10,50,1,8\nthird,20,30,2,8\n"
    )
    return ["--nodes", str(tmp_path / "nodes.csv"), "--jobs", str(tmp_path / "jobs.csv")]


def test_simulate_shows_the_figures_as_a_table(tables: list[str], muster: Muster) -> None:
    ended = muster("simulate", *tables)
    assert (ended.code, ended.err) == (0, "")
    lines = {line.split("  ")[0]: line.split()[-1] for line in ended.out.splitlines() if line}
    assert (lines["16 GPUs"], lines["jobs"], lines["completed"], lines["preemptions"]) == ("muster", "3", "3", "0")


def test_simulate_writes_one_object_of_json_for_one_policy(tables: list[str], tmp_path: Path, muster: Muster) -> None:
    assert muster("simulate", *tables, "--json", str(tmp_path / "out.json")).code == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert list(figures) == KEYS
    assert list(figures["wait_s"]) == ["mean", "p50", "p95", "p99"]
    assert figures["completed"] == 3


def test_simulate_compares_policies_side_by_side(tables: list[str], muster: Muster) -> None:
    ended = muster("simulate", *tables, "--policy", "fifo", "--policy", "muster", "--json", "-")
    assert [row["policy"] for row in ended.rows] == ["fifo", "muster"]
    head = muster("simulate", *tables, "--compare").out.splitlines()[0]
    assert head.split() == ["16", "GPUs", "muster", "fifo", "priority", "backfill"]


def test_placements_have_a_row_for_every_stay_and_never_more_than_a_node_has(
    tables: list[str], tmp_path: Path, muster: Muster
) -> None:
    out = tmp_path / "stays.csv"
    assert muster("simulate", *tables, "--placements", str(out)).code == 0
    rows = list(csv.DictReader(out.open()))
    assert sorted(row["job"] for row in rows) == ["first", "second", "third", "third"]
    for row in rows:
        taken = [
            int(other["gpus"])
            for other in rows
            if other["node"] == row["node"] and float(other["start_s"]) <= float(row["start_s"]) < float(other["end_s"])
        ]
        assert sum(taken) <= 8


def test_of_several_policies_each_has_its_own_placements(tables: list[str], tmp_path: Path, muster: Muster) -> None:
    out = str(tmp_path / "stays.csv")
    muster("simulate", *tables, "--policy", "fifo", "--policy", "backfill", "--placements", out)
    assert sorted(path.name for path in tmp_path.glob("stays*")) == ["stays.backfill.csv", "stays.fifo.csv"]


@pytest.mark.parametrize(("words", "makespan_s"), [([], 140), (["--stop-seconds", "0"], 130)])
def test_the_time_that_pods_take_to_stop_is_an_option(
    tmp_path: Path, muster: Muster, words: list[str], makespan_s: float
) -> None:
    (tmp_path / "nodes.csv").write_text("name,gpus,cpu_milli,memory_mib\nn1,8,64000,1000\n")
    (tmp_path / "jobs.csv").write_text(
        "name,submit_s,runtime_s,pods,gpus_per_pod,priority\nlow,0,100,1,8,0\nhigh,10,20,1,8,5\n"
    )
    tables = ["--nodes", str(tmp_path / "nodes.csv"), "--jobs", str(tmp_path / "jobs.csv")]
    figures = json.loads(muster("simulate", *tables, *words, "--json", "-").out)
    assert figures["makespan_s"] == pytest.approx(makespan_s)


def test_rows_that_cannot_be_read_are_named_and_refused_unless_they_are_skipped(
    tables: list[str], tmp_path: Path, muster: Muster
) -> None:
    with (tmp_path / "jobs.csv").open("a") as file:
        file.write("fourth,5,-1,1,1\nfifth,5\n")
    ended = muster("simulate", *tables)
    assert ended.code == 2
    assert "line 5" in ended.err
    assert "line 6" in ended.err
    ended = muster("simulate", *tables, "--skip-bad")
    assert ended.code == 0
    assert "2 rows" in ended.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--policy", "lifo"], "Usage"),
        (["--bound-factor", "0.5"], "Usage"),
        (["--bound-factor", "nan"], "Usage"),
        (["--stop-seconds", "-1"], "Usage"),
        (["--stop-seconds", "inf"], "Usage"),
        (["--queues", "nowhere.yaml"], "FileError"),
        (["--json", "/nowhere/out.json"], "FileError"),
        (["--placements", "/nowhere/out.csv"], "FileError"),
    ],
)
def test_invalid_options_of_simulate_are_refused(
    tables: list[str], muster: Muster, words: list[str], reason: str
) -> None:
    ended = muster("simulate", *tables, *words, *([] if "--json" in words else ["--json", "-"]))
    assert (ended.code, ended.error["reason"]) == (2, reason)
    assert ended.error["field"] == words[0] if reason == "Usage" else words[1] in ended.error["message"]


def test_simulate_takes_a_queue_tree(tables: list[str], tmp_path: Path, muster: Muster) -> None:
    (tmp_path / "queues.yaml").write_text(
        "apiVersion: muster.dev/v1alpha1\nkind: Queue\nmetadata: {name: default}\n"
        "spec: {namespaceSelector: {}, resources: [{flavor: gpu, guaranteed: {nvidia.com/gpu: 8}}]}\n"
    )
    ended = muster("simulate", *tables, "--queues", str(tmp_path / "queues.yaml"), "--json", "-")
    assert json.loads(ended.out)["refused"] == 1  # the third wants 16


# ---- replay


def simulated_snapshot() -> Snapshot:
    request = Resources.of({GPU: 8, "pods": 1})
    node = Resources.of({GPU: 8, "pods": 110})

    def gang(name: str, pods: int, at: float) -> Gang:
        return Gang(name, f"default/{name}", "research", 0, at, (Role("trainer", pods, pods, request),))

    placed = (RolePlacement("trainer", "h200", (("n1", 1),)),)
    return Snapshot(
        now=100.0,
        nodes=tuple(NodeInfo(f"n{index}", node, flavor="h200") for index in (1, 2)),
        flavors=(FlavorInfo("h200"),),
        queues=(QueueInfo("research", quotas=(Quota("h200", GPU, guaranteed=16),)),),
        pending=(gang("big", 2, 10.0), gang("huge", 3, 11.0)),
        running=(RunningGang(gang("old", 1, 0.0), placed, admitted_at=1.0, started_at=2.0),),
    )


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "snapshot.json"
    path.write_bytes(encode_snapshot(simulated_snapshot()))
    return str(path)


def test_replay_shows_why_each_gang_waits(saved: str, muster: Muster) -> None:
    ended = muster("replay", saved)
    assert (ended.code, ended.err) == (0, "")
    assert [word for word in ended.out.splitlines()[0].split() if word.isdecimal()] == ["2", "1", "2"]
    assert "default/big" in ended.out


def test_replay_shows_a_nomination_with_the_gangs_that_are_evicted_for_it(tmp_path: Path, muster: Muster) -> None:
    before, path = simulated_snapshot(), tmp_path / "snapshot.json"
    urgent = replace(before.pending[0], uid="urgent", name="default/urgent", priority=100)
    path.write_bytes(encode_snapshot(replace(before, pending=(urgent,))))
    ended = muster("replay", str(path))
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"default/urgent +research +Nominate +n1 ×1, n2 ×1; from default/old", ended.out)
    assert ended.out.rstrip().endswith("1 nominate, 1 evict")


def test_replay_reads_stdin_where_a_dash_stands(saved: str, muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = muster("replay", saved).out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(saved).read_bytes())))
    assert muster("replay", "-").out == from_file
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert "stdin: not a snapshot" in muster("replay", "-").err


def test_replay_as_json_names_gangs_reasons_and_places(saved: str, muster: Muster, tmp_path: Path) -> None:
    rows = {row["gang"]: row for row in muster("replay", saved, "--json").rows}
    assert rows["default/big"]["decision"] == "Wait"
    assert rows["default/huge"]["reason"] in ("LargerThanQuota", "LargerThanCluster")
    empty = tmp_path / "empty.json"
    before = simulated_snapshot()
    empty.write_bytes(
        encode_snapshot(Snapshot(**{name: getattr(before, name) for name in before.__slots__} | {"running": ()}))
    )
    (start, _) = muster("replay", str(empty), "--json").rows
    assert start == {
        "gang": "default/big",
        "decision": "Admit",
        "backfilled": False,
        "placement": [
            {
                "role": "trainer",
                "flavor": "h200",
                "nodes": [{"node": "n1", "indexes": "0"}, {"node": "n2", "indexes": "1"}],
            }
        ],
    }


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"now": "soon"}', "\x00"])
def test_what_is_no_snapshot_is_invalid(text: str, tmp_path: Path, muster: Muster) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    ended = muster("replay", str(path))
    assert (ended.code, f"{path}: not a snapshot" in ended.err) == (2, True)
