"""Code of a folder that the pods of a job in a cluster unpack."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchx.components import utils
from torchx.runner import Runner, get_runner

from muster.api.spec import TrainingJob
from muster.api.yaml_input import load_objects
from muster.cluster_client.submit import ARCHIVE
from muster.torchx.errors import SubmissionRefused
from muster.torchx.kubernetes import pack_workspace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of code, and what a job does not need."""
    folder = tmp_path / "code"
    for name in ("package/data.txt", "secret.key", ".git/HEAD", "package/__pycache__/a.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "train.sh").write_text('#!/bin/sh\necho "in $(basename "$PWD"): $(cat package/data.txt) $1"\nls -A\n')
    (folder / "train.sh").chmod(0o755)
    (folder / "linked").symlink_to("/etc/hostname")
    (folder / ".torchxignore").write_text("*.key\n")
    return folder


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runner]:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path))
    with get_runner() as runner:
        yield runner


def dry_run(runner: Runner, **cfg: object) -> TrainingJob:
    described = utils.sh("./train.sh", "--all", image="registry/image:1", num_replicas=2)
    described.roles[0].entrypoint, described.roles[0].args = "./train.sh", ["--all"]
    (job,) = load_objects(str(runner.dryrun(described, "muster", cfg)))
    assert isinstance(job, TrainingJob)
    return job


def test_the_command_of_a_pod_unpacks_the_code_and_starts_the_program_there(
    runner: Runner, folder: Path, tmp_path: Path
) -> None:
    command = dry_run(runner, workspace=str(folder)).spec.roles[0].template.spec.containers[0].command
    for name in ("workspace-archive", "workspace"):
        (tmp_path / "muster" / name).mkdir(parents=True)
    (tmp_path / "muster" / "workspace-archive" / ARCHIVE).write_bytes(pack_workspace(str(folder)))
    here = [part.replace("/muster/", f"{tmp_path}/muster/") for part in command]
    ran = subprocess.run(here, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["in workspace: package/data.txt --all", ".torchxignore", "package", "train.sh"]
    assert not (tmp_path / "muster" / "workspace" / "package" / "__pycache__").exists()


def test_the_pods_mount_the_archive_of_their_job(runner: Runner, folder: Path) -> None:
    job = dry_run(runner, workspace=str(folder))
    pod = job.spec.roles[0].template.spec
    assert {"name": "workspace-archive", "configMap": {"name": f"{job.metadata.name}-workspace"}} in pod.volumes
    mounts = {mount["name"]: mount["mountPath"] for mount in pod.containers[0].volume_mounts}
    assert mounts["workspace-archive"] == "/muster/workspace-archive"
    assert mounts["workspace"] == "/muster/workspace"
    assert dry_run(runner).spec.roles[0].template.spec.containers[0].command == ["./train.sh"]


def test_equal_folders_have_equal_archives(folder: Path) -> None:
    first = pack_workspace(str(folder))
    os.utime(folder / "train.sh", (1, 1))
    assert pack_workspace(str(folder)) == first


def test_a_folder_that_is_missing_or_too_large_is_refused_with_the_largest_files(runner: Runner, folder: Path) -> None:
    with pytest.raises(SubmissionRefused, match="workspace: must be a folder; got '/no/such'"):
        dry_run(runner, workspace="/no/such")
    (folder / "weights.bin").write_bytes(os.urandom(1_100_000))
    with pytest.raises(
        SubmissionRefused, match=r"must have at most 1 MB when compressed; .* largest files: weights.bin"
    ):
        dry_run(runner, workspace=str(folder))
