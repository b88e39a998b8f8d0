"""`muster run` in a cluster: the job and its archive of code, what the pods start, and what `muster diff` reads."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cluster_client.server import JOBS, Server

from muster import Client
from muster.cluster_client.submit import ARCHIVE, read_archive
from muster.cluster_client.workspace import unpack
from muster.errors import InvalidSpec
from muster.local.submissions import ARCHIVED_STDIN

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
IMAGE = "me/torch:1"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Server) -> Path:
    import muster.cli.options as opening

    monkeypatch.setattr(opening, "_kubernetes_client", lambda context: cluster.client())
    monkeypatch.setenv("MUSTER_CLUSTER", "kubernetes")
    monkeypatch.setenv("MUSTER_IMAGE", IMAGE)
    folder = tmp_path / "project"
    (folder / "exp").mkdir(parents=True)
    (folder / "common.txt").write_text("common\n")
    (folder / "exp" / "train.py").write_text("print('one')\n")
    (folder / "exp" / "words.txt").write_text("words\n")
    monkeypatch.chdir(folder)
    return folder


def start(muster: Muster, *words: str) -> None:
    ended = muster("run", "--name", "mine", "--queue", "research", *words)
    assert (ended.code, ended.out) == (0, "mine\n"), ended.err


def container(cluster: Server, name: str = "mine") -> dict[str, Any]:
    (found,) = cluster.objects[f"{JOBS}/{name}"]["spec"]["roles"][0]["template"]["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def archive(cluster: Server) -> dict[str, bytes]:
    content = base64.b64decode(cluster.objects[f"{CONFIG_MAPS}/mine-workspace"]["binaryData"][ARCHIVE])
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        return {one.name: files.extractfile(one).read() for one in files}  # type: ignore[union-attr]


def run_as_a_pod(cluster: Server, folder: Path) -> str:
    """Run the command of a pod with its volumes below a folder."""
    stored = cluster.objects[f"{CONFIG_MAPS}/mine-workspace"]["binaryData"][ARCHIVE]
    for name in ("workspace", "workspace-archive"):
        (folder / name).mkdir(parents=True)
    (folder / "workspace-archive" / ARCHIVE).write_bytes(base64.b64decode(stored))
    words = [word.replace("/muster/workspace", f"{folder}/workspace") for word in container(cluster)["command"]]
    return subprocess.run(words, check=True, capture_output=True, text=True, cwd="/").stdout


def test_the_pods_start_in_a_copy_of_the_folder(project: Path, muster: Muster, cluster: Server, tmp_path: Path) -> None:
    start(muster, "--", "cat", "exp/words.txt", "common.txt")
    (project / "common.txt").write_text("edited later\n")
    assert run_as_a_pod(cluster, tmp_path / "pod") == "words\ncommon\n"
    assert container(cluster)["image"] == IMAGE
    (owner,) = cluster.objects[f"{CONFIG_MAPS}/mine-workspace"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TrainingJob", "mine")


def test_in_a_subfolder_of_a_repository_the_pods_start_in_that_of_its_copy(
    project: Path, muster: Muster, cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    sub = project / 'a "b" $c'
    (project / "exp").rename(sub)
    monkeypatch.chdir(sub)
    start(muster, "--", "cat", "words.txt", "../common.txt")
    assert run_as_a_pod(cluster, tmp_path / "pod") == "words\ncommon\n"


def test_a_script_starts_by_its_path_in_the_subfolder(
    project: Path, muster: Muster, cluster: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    monkeypatch.chdir(project / "exp")
    start(muster, "--", "train.py", "--lr", "1")
    assert container(cluster)["command"][-4:] == ["muster_components.trainer.instrument", "train.py", "--lr", "1"]
    assert container(cluster)["command"][3] == "exp"


def test_a_script_from_stdin_is_in_the_archive(
    project: Path, muster: Muster, cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("#!/bin/sh\necho $1 from stdin\n"))
    start(muster, "--", "-", "text")
    assert run_as_a_pod(cluster, tmp_path / "pod") == "text from stdin\n"


def test_command_environment_names_and_versions_are_recorded(project: Path, muster: Muster, cluster: Server) -> None:
    start(muster, "--env", "TOKENS=7", "--", "exp/train.py", "--lr", "1")
    record = json.loads(archive(cluster)[".muster-run.json"])
    assert record["command"] == ["exp/train.py", "--lr", "1"]
    assert record["environment"] == ["TOKENS"]
    assert record["files"] == ["common.txt", "exp/train.py", "exp/words.txt"]
    assert {"python", "click"} <= record["submitterVersions"].keys()
    assert "versions" not in record  # those of the image are not known


def test_without_a_copy_nothing_is_unpacked(project: Path, muster: Muster, cluster: Server) -> None:
    start(muster, "--no-copy", "--", "true")
    assert container(cluster)["command"] == ["true"]
    assert f"{CONFIG_MAPS}/mine-workspace" not in cluster.objects


def test_an_image_is_required(project: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_IMAGE")
    ended = muster("run", "--json", "--", "true")
    assert (ended.code, ended.error["field"]) == (2, "--image")


def test_a_dry_run_prints_the_job_and_creates_nothing(project: Path, muster: Muster, cluster: Server) -> None:
    before = dict(cluster.objects)
    ended = muster("run", "--dry-run", "--queue", "research", "--", "cat", "common.txt")
    assert (ended.code, "configMap:" in ended.out) == (0, True)
    assert cluster.objects == before


def test_diff_compares_code_command_and_image_of_two_runs(project: Path, muster: Muster, cluster: Server) -> None:
    start(muster, "--", "exp/train.py", "--lr", "1")
    (project / "exp" / "train.py").write_text("print('two')\n")
    options = ["--name", "other", "--queue", "research", "--image", "me/torch:2"]
    assert muster("run", *options, "--", "exp/train.py", "--lr", "2").code == 0
    rows = {row["field"]: (row["first"], row["second"]) for row in muster("diff", "mine", "other", "--json").rows}
    assert rows["command"] == ("exp/train.py --lr 1", "exp/train.py --lr 2")
    assert rows["image of trainer"] == (IMAGE, "me/torch:2")
    assert "file exp/train.py" in rows
    assert "file common.txt" not in rows
    assert "+print('two')" in muster("diff", "mine", "other", "--code").out


def test_who_may_not_read_the_archive_compares_the_rest(project: Path, muster: Muster, cluster: Server) -> None:
    start(muster, "--", "true")
    del cluster.objects[f"{CONFIG_MAPS}/mine-workspace"]
    assert read_archive(cluster.connection(), "mine", "default") is None
    assert muster("diff", "mine", "mine").out == "No difference.\n"


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be unpacked"):
        unpack(b"no archive", tmp_path)


def say(word: str) -> None:
    print("the function says", word)


def test_the_client_sends_a_function_as_the_script_of_the_pods(
    project: Path, cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    client = Client(namespace="default")
    job = client.run(say, "hello", name="mine", queue="research", copy=False)
    assert (job.name, job.object.spec.queue) == ("mine", "research")
    script = archive(cluster)[ARCHIVED_STDIN].decode()
    assert script.endswith("if __name__ == \"__main__\":\n    say('hello')\n")
    assert [one.name for one in client.jobs()] == ["mine"]
