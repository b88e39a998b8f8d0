"""The compile cache: what is loaded, what is not, and a warm start from it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch._inductor.codecache
from tests.trainer.conftest import TINY, Starter, compilations, losses
from torch._inductor.cpu_vec_isa import invalid_vec_isa

from muster_components.trainer.compilation.cache import CompileCache
from muster_components.trainer.compilation.monitor import cache_key, cache_location
from muster_components.trainer.context import run_context
from muster_components.trainer.errors import EXIT_OK
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan
from muster_components.trainer.session import train_model

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`use_folder` changes how torch compiles in this process."""
    monkeypatch.setattr(torch._inductor.codecache, "_precompile_header", torch._inductor.codecache._precompile_header)


CODE = {"ab/kernel.so": b"co\nde", "triton/0/kernel.cubin": b"binary"}


def cache(location: object, host: Path, warnings: list[str] | None = None, **key: object) -> CompileCache:
    """The entry as a rank on `host` sees it."""
    warn = (lambda line: None) if warnings is None else warnings.append
    return CompileCache(str(location), {"torch": "2.13", **key}, "pp-0", host, True, warn)


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A host that has compiled CODE, with what torch leaves beside it."""
    host = tmp_path / "host"
    folder = cache("", host).folder
    for name, content in {**CODE, "locks/kernel.lock": b"", "ab/.1.tmp": b"half"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return host


def code_of(entry: CompileCache) -> dict[str, bytes]:
    """What Inductor and Triton find on the entry's host."""
    files = (path for path in entry.folder.rglob("*") if path.is_file())
    return {path.relative_to(entry.folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("url", ["{}", "file://{}", "local://{}", "memory://{}"])
def test_what_one_host_saves_another_finds_in_its_own_folder(tmp_path: Path, compiled: Path, url: str) -> None:
    location = url.format(tmp_path / "cache")
    warnings: list[str] = []
    fresh = cache(location, tmp_path / "fresh", warnings)
    assert not fresh.load()
    assert cache(location, compiled, warnings).save()
    assert fresh.load()
    assert code_of(fresh) == CODE
    environ: dict[str, str] = {}
    fresh.use_folder(environ)
    assert environ == {
        "TORCHINDUCTOR_CACHE_DIR": str(fresh.folder),
        "TRITON_CACHE_DIR": str(fresh.folder / "triton"),
    }
    assert not warnings


def test_triton_finds_its_kernels_in_the_folder_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton keeps the paths of a kernel's files in a file."""
    triton_cache = pytest.importorskip("triton.runtime.cache")

    def kernel_on(entry: CompileCache) -> Any:
        """Triton's files of one kernel, for a process that uses the entry's folder."""
        environ: dict[str, str] = {}
        entry.use_folder(environ)
        monkeypatch.setenv("TRITON_CACHE_DIR", environ["TRITON_CACHE_DIR"])
        return triton_cache.FileCacheManager("kernel")

    cold, warm = (cache(tmp_path / "cache", tmp_path / name) for name in ("cold", "warm"))
    compiled = kernel_on(cold)
    compiled.put_group("k.json", {"k.cubin": compiled.put(b"binary", "k.cubin", binary=True)})
    assert cold.save()
    assert warm.load()
    found = warm.folder / "triton" / "kernel" / "k.cubin"
    assert kernel_on(warm).get_group("k.json") == {"k.cubin": str(found)}
    assert found.read_bytes() == b"binary"


def test_files_that_a_host_has_are_kept(tmp_path: Path, compiled: Path) -> None:
    """A process may have loaded them."""
    assert cache(tmp_path, compiled).save()
    entry = cache(tmp_path, tmp_path / "fresh")
    (entry.folder / "ab").mkdir(parents=True)
    (entry.folder / "ab" / "kernel.so").write_bytes(b"own")
    assert entry.load()
    assert code_of(entry) == {**CODE, "ab/kernel.so": b"own"}


def test_an_archive_with_a_path_outside_of_its_folder_is_not_unpacked(tmp_path: Path, compiled: Path) -> None:
    warnings: list[str] = []
    entry = cache(tmp_path / "cache", tmp_path / "fresh", warnings)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("ab/kernel.so", b"")
        writer.writestr("../outside", b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster_components.trainer.compilation.cache.pack", lambda _: archive.getvalue())
        assert entry.save()
    assert not entry.load()
    assert not code_of(entry)
    assert "got '../outside'" in warnings[0]


def test_another_version_mesh_or_part_has_an_entry_of_its_own(tmp_path: Path, compiled: Path) -> None:
    assert cache(tmp_path, compiled).save()
    fresh = tmp_path / "fresh"
    assert not cache(tmp_path, fresh, torch="2.14").load()
    assert not cache(tmp_path, fresh, mesh="fsdp=2").load()
    assert not dataclasses.replace(cache(tmp_path, fresh), part="pp-1").load()
    assert not fresh.exists()


def plan_of(*flags: str) -> TrainPlan:
    host = HostCapabilities(device="cuda", world_size=4, has_compiler=True, has_bf16=True, has_float8=True)
    return resolve_plan(parse_train_config(["--model", "gpt:1m", "--data", "unused", *flags], {}), host)


def key_of(*flags: str, namespace: str = "team-a") -> dict[str, object]:
    plan = plan_of(*flags)
    return cache_key(plan, train_model(plan), {"MUSTER_NAMESPACE": namespace})


def test_the_key_has_versions_gpu_model_mesh_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        key_of(),
        key_of("--model", "gpt:10m"),
        key_of("--model_args", "layers=2"),
        key_of("--parallel", "tp=2"),
        key_of("--parallel", "hsdp=2x2"),
        key_of("--parallel", "pp=2"),
        key_of("--parallel", "pp=2", "--pipeline_schedule", "GPipe"),
        key_of("--seq_len", "512"),
        key_of("--micro_batch", "1"),
        key_of("--precision", "fp32"),
        key_of("--float8", "tensorwise"),
        key_of("--activation_checkpointing", "full"),
        key_of("--offload_activations"),
        key_of("--symmetric_memory"),
        key_of("--deterministic"),
    ]
    monkeypatch.setattr(torch, "__version__", "2.99")
    keys.append(key_of())
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    keys.append(key_of())
    monkeypatch.setattr(pytest.importorskip("triton"), "__version__", "99.0")
    keys.append(key_of())
    for gpu in ("NVIDIA H100", "NVIDIA H200"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu=gpu: gpu)
        keys.append(key_of())
    assert len({json.dumps(key, sort_keys=True) for key in keys}) == len(keys)
    assert key_of() == key_of("--steps", "7", "--lr", "0.1")


def test_a_namespace_has_a_folder_and_keys_of_its_own(tmp_path: Path) -> None:
    plan, context = plan_of("--compile_cache", str(tmp_path)), run_context({"MUSTER_RUN_DIR": str(tmp_path / "run")})
    assert [cache_location(plan, context, {"MUSTER_NAMESPACE": team}) for team in ("a", "b")] == [
        f"{tmp_path}/a",
        f"{tmp_path}/b",
    ]
    assert key_of(namespace="a") != key_of(namespace="b")


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
    tmp_path: Path, compiled: Path, harm: Callable[[Path], Any], reason: str
) -> None:
    warnings: list[str] = []
    entry = cache(tmp_path, tmp_path / "fresh", warnings)
    assert cache(tmp_path, compiled).save()
    harm(Path(entry.path))
    assert not entry.load()
    assert not code_of(entry)
    (warning,) = warnings
    assert entry.path in warning
    assert reason in warning


def test_other_names_of_the_file_system_are_checked_too(tmp_path: Path, compiled: Path) -> None:
    warnings: list[str] = []
    location = f"local://{tmp_path / 'cache'}"
    assert cache(location, compiled, warnings).save()
    (file,) = (tmp_path / "cache").glob("*/pp-0")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o660)
    assert not cache(location, tmp_path / "fresh", warnings).load()
    assert "writable by no other" in warnings[0]


def test_the_run_folder_may_be_writable_by_its_group(tmp_path: Path, compiled: Path) -> None:
    """Kubernetes makes the files of a volume with fsGroup writable by that group."""
    warnings: list[str] = []
    assert cache(tmp_path, compiled).save()
    entry = dataclasses.replace(cache(tmp_path, tmp_path / "fresh", warnings), in_run_folder=True)
    Path(entry.path).chmod(0o666)
    assert not entry.load()
    assert not code_of(entry)
    Path(entry.path).chmod(0o660)
    assert entry.load(), warnings
    assert code_of(entry) == CODE


def test_an_entry_that_cannot_be_written_is_named_and_leaves_no_file(tmp_path: Path, compiled: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "file").touch()
    assert not cache(tmp_path / "file", compiled, warnings).save()
    assert "cannot be written" in warnings[0]
    entry = cache(tmp_path, compiled)
    Path(entry.path).mkdir(parents=True)
    assert not entry.save()
    assert list(Path(entry.path).parent.iterdir()) == [Path(entry.path)]


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_the_entries_that_were_not_used_for_longest_are_removed_if_there_are_too_many(
    tmp_path: Path, compiled: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"{scheme}{tmp_path / 'cache'}"
    for number in (1, 2, 3):
        assert numbered_entry(location, compiled, number).save()
    first = numbered_entry(location, compiled, 1)
    size = len(fsspec.core.url_to_fs(first.path)[0].cat_file(fsspec.core.url_to_fs(first.path)[1]))
    if not scheme:
        (tmp_path / "cache" / "notes").mkdir()
        (tmp_path / "cache" / "notes" / "mine").write_bytes(b"x" * 10 * size)  # no entry: neither counted nor removed
        for age, number in enumerate((3, 2, 1)):
            os.utime(numbered_entry(location, compiled, number).path, (1000 + age, 1000 + age))
        assert numbered_entry(location, tmp_path / "fresh", 2).load()
    monkeypatch.setattr("muster_components.trainer.compilation.cache.MAX_TOTAL_BYTES", 3 * size)
    assert numbered_entry(location, compiled, 4).save()
    left = [number for number in (1, 2, 3, 4) if numbered_entry(location, tmp_path / f"host-{number}", number).load()]
    assert left == ([2, 3, 4] if scheme else [1, 2, 4])
    assert scheme or (tmp_path / "cache" / "notes" / "mine").exists()


def numbered_entry(location: str, host: Path, number: int) -> CompileCache:
    """The entry of one of several models, with the code of the same size."""
    entry = cache(location, host, model=number)
    if host.name == "host":
        entry.folder.mkdir(parents=True, exist_ok=True)
        (entry.folder / "kernel.so").write_bytes(b"code")
    return entry


def test_an_entry_that_would_not_be_loaded_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_components.trainer.compilation.store.MAX_BYTES", 10)
    entry = numbered_entry(str(tmp_path / "cache"), tmp_path / "host", 1)
    assert not entry.save()
    assert not (tmp_path / "cache").exists()


def test_a_host_that_cannot_make_a_precompiled_header_compiles_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache("", tmp_path).use_folder({})
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no openssl
    codecache = torch._inductor.codecache
    options = {"device_type": "cpu", "vec_isa": invalid_vec_isa}
    assert codecache._precompile_header("torch/csrc/inductor/cpp_prefix.h", "", **options) is None


@pytest.mark.compiles
def test_a_fresh_host_compiles_nothing_again(start: Starter, text: Path, tmp_path: Path) -> None:
    """Two ranks compile; a later job on a host without compiled code finds all of it in the namespace's cache."""
    compiler = tmp_path / "bin" / "g++"  # found by PATH: Inductor reads CXX when it is imported, which may be earlier
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\necho "$@" >> "$COMPILED"\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    flags = [flag for flag in TINY if flag != "--no_compile"]
    run = (*flags, "--compile", "--data", str(text), "--steps", "2", "--compile_cache", str(tmp_path / "shared"))
    for name in ("cold", "warm"):
        host = {
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name / "inductor"),
            "MUSTER_NAMESPACE": "team-a",
            "CXX": "g++",
            "TORCHINDUCTOR_COMPILE_THREADS": "2",  # by processes of their own, as where it is not set
            "PATH": f"{compiler.parent}:{os.environ['PATH']}",
            "COMPILED": str(tmp_path / f"{name}.compiled"),
        }
        ranks = start(2, *run, run_dir=tmp_path / name, environ=host)
        assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
        assert "compiled 2 graphs in " in ranks.log_text()
        assert "0 recompilations, 0 graph breaks" in ranks.log_text()
    kernels = [line for line in (tmp_path / "cold.compiled").read_text().splitlines() if ".main.cpp" in line]
    assert kernels
    if shutil.which("openssl"):  # with a precompiled header, for which torch needs it
        assert all("-include " in command for command in kernels)
    warm_commands = tmp_path / "warm.compiled"  # there are some that ask for the compiler's version
    assert not warm_commands.exists() or not re.search(r"\.cpp|\.h", warm_commands.read_text())
    (entry,) = (tmp_path / "shared" / "team-a").glob("*/*")
    assert entry.name == "pp-0.tp-0.cpu"
    assert sum(record["cache_misses"] for record in compilations(tmp_path / "cold")) > 0
    for rank in (0, 1):
        warm = compilations(tmp_path / "warm", rank)
        assert sum(record["cache_hits"] for record in warm) > 0
        assert sum(record["cache_misses"] for record in warm) == 0
    assert losses(tmp_path / "warm") == pytest.approx(losses(tmp_path / "cold"), abs=1e-5)
