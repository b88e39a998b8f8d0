"""The compile cache: what is loaded, what is not, and a warm start from it."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.conftest import TINY, Starter, compilations, losses

from muster_components.trainer.compilation.cache import CompileCache
from muster_components.trainer.errors import EXIT_OK

pytestmark = pytest.mark.slow


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What torch was given; torch itself has the artifacts b"code"."""
    loaded: list[bytes] = []

    def load(artifacts: bytes) -> object:
        loaded.append(artifacts)
        return "info"

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", load)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"co\nde", "info"))
    return loaded


def cache(location: object, warnings: list[str] | None = None, **key: object) -> CompileCache:
    warn = (lambda line: None) if warnings is None else warnings.append
    return CompileCache(str(location), {"torch": "2.13", **key}, "pp-0", True, warn)


@pytest.mark.parametrize("url", ["{}", "file://{}", "local://{}", "memory://{}"])
def test_what_one_rank_saves_another_loads(tmp_path: Path, given: list[bytes], url: str) -> None:
    location = url.format(tmp_path / "cache")
    warnings: list[str] = []
    assert not cache(location, warnings).load()
    assert cache(location, warnings).save()
    assert cache(location, warnings).load()
    assert given == [b"co\nde"]
    assert not warnings


def test_another_version_mesh_or_part_has_an_entry_of_its_own(tmp_path: Path, given: list[bytes]) -> None:
    assert cache(tmp_path).save()
    assert not cache(tmp_path, torch="2.14").load()
    assert not cache(tmp_path, mesh="fsdp=2").load()
    assert not dataclasses.replace(cache(tmp_path), part="pp-1").load()
    assert given == []


def damage(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def of_another_run(path: Path) -> None:
    header, _, artifacts = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(header), "key": {"torch": "2.14"}}).encode() + b"\n" + artifacts)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def foreign_owner(path: Path) -> None:
    os.chown(path, os.geteuid() + 1, -1)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage(lambda content: content[:-1] + b"X"), "must have sha256"),
        (damage(lambda content: content[:-1]), "bytes after the first line"),
        (damage(lambda content: b""), "its first line must be JSON"),
        (damage(lambda content: b"[" * 100_000 + content), "its first line must be JSON"),
        (of_another_run, "it is an entry of another run"),
        (lambda path: path.chmod(0o666), "writable by no other; got -rw-rw-rw-"),
        (lambda path: path.chmod(0o660), "writable by no other; got -rw-rw----"),
        pytest.param(
            foreign_owner,
            "must be owned by user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root"),
        ),
        (fifo, "must be a regular file"),
    ],
)
def test_a_damaged_or_foreign_entry_is_not_loaded_and_named(
    tmp_path: Path, given: list[bytes], harm: Callable[[Path], Any], reason: str
) -> None:
    warnings: list[str] = []
    entry = cache(tmp_path, warnings)
    assert entry.save()
    harm(Path(entry.path))
    assert not entry.load()
    assert given == []
    (warning,) = warnings
    assert entry.path in warning
    assert reason in warning


def test_other_names_of_the_file_system_are_checked_too(tmp_path: Path, given: list[bytes]) -> None:
    warnings: list[str] = []
    entry = cache(f"local://{tmp_path}", warnings)
    assert entry.save()
    (file,) = tmp_path.glob("*/pp-0")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o660)
    assert not entry.load()
    assert "writable by no other" in warnings[0]


def test_the_run_folder_may_be_writable_by_its_group(tmp_path: Path, given: list[bytes]) -> None:
    """Kubernetes makes the files of a volume with fsGroup writable by that group."""
    warnings: list[str] = []
    entry = dataclasses.replace(cache(tmp_path, warnings), in_run_folder=True)
    assert entry.save()
    Path(entry.path).chmod(0o660)
    assert entry.load(), warnings
    Path(entry.path).chmod(0o666)
    assert not entry.load()
    assert given == [b"co\nde"]


def test_an_entry_that_cannot_be_written_is_named_and_leaves_no_file(tmp_path: Path, given: list[bytes]) -> None:
    warnings: list[str] = []
    (tmp_path / "file").touch()
    assert not cache(tmp_path / "file", warnings).save()
    assert "cannot be written" in warnings[0]
    entry = cache(tmp_path)
    Path(entry.path).mkdir(parents=True)
    assert not entry.save()
    assert list(Path(entry.path).parent.iterdir()) == [Path(entry.path)]


@pytest.mark.timeout(900)
def test_a_fresh_host_compiles_nothing_again(start: Starter, text: Path, tmp_path: Path) -> None:
    """Two ranks compile; a later job on a host without compiled code finds all of it in the namespace's cache."""
    flags = [flag for flag in TINY if flag != "--no_compile"]
    run = (*flags, "--compile", "--data", str(text), "--steps", "2", "--compile_cache", str(tmp_path / "shared"))
    for name in ("cold", "warm"):
        host = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name / "inductor"), "MUSTER_NAMESPACE": "team-a"}
        ranks = start(2, *run, run_dir=tmp_path / name, environ=host)
        assert ranks.end(800) == [EXIT_OK] * 2, ranks.log_text()
        assert "compiled 2 graphs in " in ranks.log_text()
        assert "0 recompilations, 0 graph breaks" in ranks.log_text()
    (entry,) = (tmp_path / "shared" / "team-a").glob("*/*")
    assert entry.name == "pp-0.tp-0.cpu"
    assert sum(record["cache_misses"] for record in compilations(tmp_path / "cold")) > 0
    for rank in (0, 1):
        warm = compilations(tmp_path / "warm", rank)
        assert sum(record["cache_hits"] for record in warm) > 0
        assert sum(record["cache_misses"] for record in warm) == 0
    assert losses(tmp_path / "warm") == pytest.approx(losses(tmp_path / "cold"), abs=1e-5)
