"""apply, delete, queues, nodes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import JOB_YAML, QUEUE_YAML, job, queue, status

from muster.api.spec import TrainingJob
from muster.errors import ClusterError, MusterError, Refused

GPU = "nvidia.com/gpu"


def row(name: str, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"flavor": "h200"} | {
        word: {GPU: str(fields.pop(word))} if word in fields else {}
        for word in ("guaranteed", "limit", "lend", "used", "borrowed", "available")
    }
    plain = {"name": name, "parent": parent, "active": True, "reason": "Ready", "message": "", "overcommitted": None}
    return plain | {"weight": 1.0, "share": 0.0, "waiting": 0, "admitted": 0, "resources": [resources]} | fields


TREE = [
    row("company", guaranteed=32, used=28, admitted=3, waiting=1),
    row("product", "company", guaranteed=16, used=8, admitted=1),
    row("research", "company", guaranteed=16, limit=24, used=20, admitted=2, waiting=1),
]


def test_apply_prints_a_result_per_object(tmp_path: Path, cluster: MemoryClient, muster: Muster) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(f"{QUEUE_YAML}spec: {{namespaceSelector: {{}}, resources: [{{flavor: local}}]}}\n")
    assert muster("apply", str(file)).words == ["queue", "research", "created"]
    assert muster("apply", str(file)).words == ["queue", "research", "configured"]
    assert muster("apply", str(file), "--json").rows == [
        {"kind": "Queue", "namespace": None, "name": "research", "result": "configured"}
    ]


def test_apply_warns_of_a_quota_that_can_never_be_used(tmp_path: Path, cluster: MemoryClient, muster: Muster) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        f"{QUEUE_YAML}spec: {{namespaceSelector: {{}}, "
        f"resources: [{{flavor: local, guaranteed: {{{GPU}: 4}}, limit: {{{GPU}: 8}}}}]}}\n"
    )
    ended = muster("apply", str(file))
    assert (ended.code, "created" in ended.out) == (0, True)
    (row,) = muster("apply", str(file), "--json").rows
    (notice,) = row["notices"]
    assert notice.startswith("spec.resources[0].limit: nvidia.com/gpu of local: 8 ")
    assert notice in ended.err


def test_apply_refuses_a_cycle_and_changes_nothing(tmp_path: Path, cluster: MemoryClient, muster: Muster) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        f"{QUEUE_YAML}spec: {{parent: b}}\n---\n{QUEUE_YAML.replace('research', 'b')}spec: {{parent: research}}\n"
    )
    ended = muster("apply", str(file))
    assert (ended.code, "b → research → b" in ended.err) == (3, True)
    assert cluster.kept_queues == {}


def test_delete_takes_kinds_and_names_or_a_file(tmp_path: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_queues = {"a": queue("a"), "research": queue("research")}
    cluster.kept_jobs = {"j": job("j")}
    assert muster("delete", "queue", "a").words == ["queue", "a", "deleted"]
    assert muster("delete", "job", "j").words == ["trainingjob", "default/j", "deleted"]
    file = tmp_path / "queues.yaml"
    file.write_text(QUEUE_YAML)
    assert muster("delete", "-f", str(file)).words == ["queue", "research", "deleted"]
    assert muster("delete", "queue", "a").code == 3


def test_delete_of_several_deletes_none_when_one_is_not_there(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a"), "b": job("b")}
    ended = muster("delete", "job", "a", "nosuch", "b", "--json")
    assert (ended.code, ended.out, ended.error["reason"]) == (3, "", "NotFound")
    assert set(cluster.kept_jobs) == {"a", "b"}


def test_what_is_named_twice_is_deleted_once(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a")}
    assert [row["name"] for row in muster("delete", "job", "a", "default/a", "--json").rows] == ["a"]


def test_a_queue_that_waits_for_jobs_names_them(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_queues, cluster.kept_jobs = {"a": queue("a")}, {"j": job("j", queue="a"), "k": job("k", queue="a")}
    words = muster("delete", "queue", "a", "--yes").words
    assert words[:3] == ["queue", "a", "deleting"]
    assert {"default/j", "default/k", "cancel"} <= {*words}


def test_a_queue_with_unfinished_jobs_requires_yes_if_stdin_is_not_a_terminal(
    cluster: MemoryClient, muster: Muster
) -> None:
    jobs = {"j": job("j", queue="a"), "k": job("k", status("Succeeded"), queue="a")}
    cluster.kept_queues, cluster.kept_jobs = {"a": queue("a")}, jobs
    ended = muster("delete", "queue", "a", "--json")
    error = json.loads(ended.err)["error"]
    assert (ended.code, error["reason"]) == (3, "QueueInUse")
    assert "default/j" in error["message"]
    assert "default/k" not in error["message"]
    assert "a" in cluster.kept_queues
    assert muster("delete", "queue", "a", "--yes").code == 0


def test_of_several_queues_each_is_named_with_its_own_unfinished_jobs_and_those_without_are_not(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_queues = {name: queue(name) for name in ("aa", "bb", "cc", "dd")}
    cluster.kept_jobs = {"j": job("j", queue="bb"), "k": job("k", queue="dd"), "l": job("l", queue="dd")}
    ended = muster("delete", "queue", "aa", "bb", "cc", "dd")
    assert (ended.code, set(cluster.kept_queues)) == (3, {"aa", "bb", "cc", "dd"})
    of_bb, of_dd = (part.split() for part in ended.err.split("queue ")[1:])
    assert (of_bb[0], "1" in of_bb, "default/j." in of_bb) == ("bb", True, True)
    assert (of_dd[0], "2" in of_dd, "default/l." in of_dd) == ("dd", True, True)
    assert not {"aa", "cc"} & {*ended.words}


@pytest.mark.parametrize(
    ("answer", "deleted"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_at_a_terminal_the_deletion_of_a_queue_with_unfinished_jobs_is_confirmed(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, answer: str, deleted: bool
) -> None:
    cluster.kept_queues, cluster.kept_jobs = {"a": queue("a")}, {"j": job("j", queue="a")}
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ended = muster("delete", "queue", "a")
    assert {"1", "default/j"} <= {*ended.words}
    assert (ended.code, "queue a delet" in ended.out) == ((0, True) if deleted else (3, False))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("n\n", False), ("", False)])
def test_at_a_terminal_the_deletion_of_a_running_job_is_confirmed(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, answer: str, deleted: bool
) -> None:
    cluster.kept_jobs = {name: job(name, status(name.capitalize())) for name in ("running", "succeeded", "pending")}
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ended = muster("delete", "job", "running", "succeeded", "pending")
    assert "default/running" in ended.err
    assert not {"default/succeeded", "default/pending"} & {*ended.err.split()}
    assert "muster cancel" in ended.err
    assert (ended.code, cluster.kept_jobs == {}) == ((0, True) if deleted else (3, False))


def test_the_answer_no_is_an_error_with_a_reason(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.kept_jobs = {"a": job("a", status("Running"))}
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ended = muster("delete", "job", "a", "--json")
    assert (ended.code, json.loads(ended.err.splitlines()[-1].partition("[y/N] ")[2])["error"]["reason"]) == (
        3,
        "NotConfirmed",
    )


def test_one_question_is_about_queues_and_jobs(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.kept_queues = {"research": queue("research")}
    cluster.kept_jobs = {"llama": job("llama", status("Running")), "other": job("other", queue="research")}
    file = tmp_path / "all.yaml"
    file.write_text(f"{JOB_YAML}---\n{QUEUE_YAML}")
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    ended = muster("delete", "-f", str(file))
    assert {"default/llama", "default/other."} <= {*ended.err.split()}
    assert (ended.code, ended.err.count("[y/N]"), set(cluster.kept_jobs)) == (0, 1, {"other"})


@pytest.mark.parametrize("error", [Refused("you may not read it"), ClusterError("it cannot be decoded")])
def test_at_a_terminal_a_job_that_cannot_be_read_is_deleted_without_a_question(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, error: MusterError
) -> None:
    def unreadable(name: str, namespace: str) -> TrainingJob:
        raise error

    cluster.kept_jobs = {"a": job("a", status("Running"))}
    monkeypatch.setattr(cluster, "job", unreadable)
    monkeypatch.setattr("sys.stdin", Terminal(""))
    ended = muster("delete", "job", "a")
    assert (ended.code, ended.err, cluster.kept_jobs) == (0, "", {})


@pytest.mark.parametrize("is_terminal", [True, False])
def test_with_yes_or_without_a_terminal_a_running_job_is_deleted_at_once(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    cluster.kept_jobs = {"a": job("a", status("Running"))}
    monkeypatch.setattr("sys.stdin", Terminal("") if is_terminal else io.StringIO())
    ended = muster("delete", "job", "a", *["--yes"] * is_terminal)
    assert (ended.code, ended.err, cluster.kept_jobs) == (0, "", {})


def test_a_queue_whose_jobs_are_deleted_with_it_needs_no_yes(
    cluster: MemoryClient, muster: Muster, tmp_path: Path
) -> None:
    cluster.kept_queues, cluster.kept_jobs = {"research": queue("research")}, {"llama": job("llama")}
    file = tmp_path / "all.yaml"
    file.write_text(f"{JOB_YAML}---\n{QUEUE_YAML}")
    assert muster("delete", "-f", str(file)).code == 0


def test_queues_that_are_deleted_together_go_from_the_leaves_up(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_queues = {name: queue(name) for name in ("company", "product", "research")}
    cluster.queue_rows = TREE
    message = muster("delete", "queue", "company", "research", "product").out
    assert [line.split()[1] for line in message.splitlines()][-1] == "company"


@pytest.mark.parametrize(("words", "field"), [(["pod", "x"], "kind"), ([], "")])
def test_delete_without_a_known_kind_is_invalid(
    cluster: MemoryClient, muster: Muster, words: list[str], field: str
) -> None:
    ended = muster("delete", *words, "--json")
    assert (ended.code, ended.error["reason"], ended.error["field"]) == (2, "Usage", field)


def test_queues_are_a_tree_with_bars_to_one_scale(cluster: MemoryClient, muster: Muster) -> None:
    cluster.queue_rows = TREE
    bar = 28
    half, used, borrowed = bar // 2, round(28 / 32 * bar), round(20 / 32 * bar) - bar // 2
    lines = muster("queues").out.splitlines()
    assert lines[1].split() == ["company", "●3", "○1", "gpu", "█" * used + "░" * (bar - used), "28", "32"]
    assert lines[2].split() == ["├─", "product", "●1", "gpu", "█" * 7 + "░" * 7 + "·" * half, "8", "16"]
    reach = round(24 / 32 * bar) - half - borrowed
    drawn = "█" * half + "▓" * borrowed + "·" * reach
    assert lines[3].split() == ["└─", "research", "●2", "○1", "gpu", drawn, "20", "16", "4", "24"]
    assert lines[-1].split("  ")[:4] == ["██ used", "▓▓ borrowed", "░░ own, idle", "·· may borrow"]


def test_a_queue_whose_jobs_can_use_no_flavor_is_shown_so_and_one_above_others_without_quota(
    cluster: MemoryClient, muster: Muster
) -> None:
    bare = {**row("bare"), "reason": "NoResources", "message": "its jobs can use no node", "resources": []}
    cluster.queue_rows = [{**row("top"), "resources": []}, bare]
    lines = muster("queues").out.splitlines()
    assert "no flavor" in next(line for line in lines if line.startswith("bare"))
    assert "! bare: its jobs can use no node" in lines
    assert "no quota" in next(line for line in lines if line.startswith("top"))


def test_a_queue_that_names_a_flavor_which_does_not_exist_says_so(cluster: MemoryClient, muster: Muster) -> None:
    cluster.queue_rows = [{**row("typo"), "reason": "FlavorNotFound", "message": "flavor 'h20' does not exist"}]
    lines = muster("queues").out.splitlines()
    assert "typo !" in lines[1]
    assert "! typo: flavor 'h20' does not exist" in lines


def test_a_resource_without_quota_shows_usage_only(cluster: MemoryClient, muster: Muster) -> None:
    unlimited = row("default", used=8)
    unlimited["resources"][0]["guaranteed"] = {"pods": "4"}
    cluster.queue_rows = [unlimited]
    lines = muster("queues").out.splitlines()
    assert lines[1].split() == ["default", "gpu", "not", "limited", "8"]
    assert lines[2].split()[-2:] == ["0", "4"]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_names_of_queues_and_nodes_are_shown_whole_however_long_they_are(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    long = "a-name-of-thirty-six-characters-in-a1"
    monkeypatch.setenv("COLUMNS", str(columns))
    cluster.queue_rows = [*TREE, row(long, "company", used=2, guaranteed=4)]
    cluster.node_rows = [node_row(long), node_row("n1")]
    for verb in ("queues", "nodes"):
        out = muster(verb).out
        assert long in out
        assert max(map(len, out.splitlines())) <= columns
        assert "…" not in out


def test_queues_fit_a_terminal_of_eighty_columns(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cluster.queue_rows = TREE
    out = muster("queues").out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_what_is_wrong_with_a_queue_stands_below_the_tree(cluster: MemoryClient, muster: Muster) -> None:
    cluster.queue_rows = [
        row("lost", "nowhere", active=False, message="its parent 'nowhere' does not exist"),
        row("top", overcommitted="its children are guaranteed 24"),
        row("a", "b", active=False, message="in a cycle: a → b → a"),
        row("b", "a", active=False, message="in a cycle: a → b → a"),
    ]
    out = muster("queues").out
    assert "! lost: its parent 'nowhere' does not exist" in out
    assert "! top: its children are guaranteed 24" in out
    assert "! a: in a cycle" in out
    assert "! b: in a cycle" in out


def test_queues_as_json_are_the_rows(cluster: MemoryClient, muster: Muster) -> None:
    cluster.queue_rows = TREE
    assert muster("queues", "--json").rows == TREE


def test_without_queues_the_next_command_is_suggested(cluster: MemoryClient, muster: Muster) -> None:
    assert "muster apply QUEUES.yaml" in muster("queues").out


def node_row(name: str, **changes: Any) -> dict[str, Any]:
    """A virtual node of 8 GPUs, 4 of them used; changes: its fields."""
    usual = {"name": name, "flavor": "h200", "virtual": True, "ready": True, "labels": {}}
    usual |= {"cordoned": False, "draining": False}
    amounts = {"allocatable": {GPU: "8", "cpu": "64", "pods": "110"}, "used": {GPU: "4"}, "pods": ["a-trainer-0"]}
    return usual | amounts | changes


def test_nodes_show_flavor_use_and_state(cluster: MemoryClient, muster: Muster) -> None:
    cluster.node_rows = [
        node_row("n0", flavor=None, ready=False, used={}, pods=[]),
        node_row("n1"),
    ]
    lines = muster("nodes").out.splitlines()
    assert lines[0].split() == ["NODE", "FLAVOR", "GPU", "CPU", "PODS"]
    assert lines[1].split() == ["n0", "none", "░" * 10, "0/8", "░" * 10, "0/64", "0", "not", "ready"]
    assert lines[2].split() == ["n1", "h200", "█" * 5 + "░" * 5, "4/8", "░" * 10, "0/64", "1", "virtual"]


def test_gpus_of_nodes_come_before_what_every_node_has(cluster: MemoryClient, muster: Muster) -> None:
    amounts = {"ephemeral-storage": "1Ti", "memory": "1Ti", "cpu": "64", "nvidia.com/gpu": 8}
    cluster.node_rows = [node_row("n0", allocatable=amounts)]
    assert muster("nodes").out.split()[2:6] == ["GPU", "CPU", "EPHEMERAL-STORAGE", "MEMORY"]


def test_nodes_that_take_no_jobs_say_why(cluster: MemoryClient, muster: Muster) -> None:
    rows = [node_row("n0", cordoned=True), node_row("n1", draining=True), node_row("n2", draining=True, ready=False)]
    cluster.node_rows = rows
    states = [line.split()[7:] for line in muster("nodes").out.splitlines()[1:]]
    assert states == [["cordoned"], ["draining"], ["not", "ready"]]
