"""Checkpoints are verified before they are loaded, and code in them is not executed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from muster_components.trainer.checkpoint_files import (
    CheckedPlanner,
    CheckedReader,
    read_metadata,
)
from muster_components.trainer.checkpoint_manifest import (
    FileDigest,
    read_digests,
    verify_files,
    with_digests,
)
from muster_components.trainer.errors import EXIT_OK
from muster_components.trainer.metadata_unpickler import MetadataUnpickler
from muster_components.trainer.regular_files import read_regular

from .conftest import Finished, Starter, events, losses

SHARD = "__0_0.distcp"


class Runs:
    """Creates a folder when it is unpickled without restrictions."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def flip_byte(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def redigest(checkpoint: Path) -> None:
    """Update the manifest to match the files, as a program that can write to the folder could."""
    described = json.loads((checkpoint / "muster.json").read_text())
    files = [digest(checkpoint / file["name"]) for file in described.pop("files", [])]
    described.pop("sha256", None)
    (checkpoint / "muster.json").write_text(json.dumps(with_digests(described, files)))


def digest(path: Path) -> FileDigest:
    content = path.read_bytes()
    return FileDigest(path.name, len(content), hashlib.sha256(content).hexdigest())


def unreadable(run_dir: Path) -> list[str]:
    return [event["message"] for event in events(run_dir, "checkpoint_unreadable")]


@pytest.mark.slow
def test_a_corrupt_or_foreign_file_is_named_and_the_previous_checkpoint_is_used(
    start: Starter, finished: Finished
) -> None:
    expected = losses(finished.run_dir)
    checkpoints = finished.run_dir / "checkpoints"
    damaged = checkpoints / "step-00000009" / "__1_0.distcp"
    flip_byte(damaged, damaged.stat().st_size // 2)
    unmanaged = checkpoints / "step-00000006" / SHARD
    unmanaged.write_bytes((checkpoints / "step-00000003" / SHARD).read_bytes())

    again = start(2, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK] * 2, again.log_text()
    named = unreadable(finished.run_dir)
    assert ["step-00000009" in named[0], "__1_0.distcp must have sha256" in named[0]] == [True, True]
    assert ["step-00000006" in named[1], f"{SHARD} must have sha256" in named[1]] == [True, True]
    assert [event["step"] for event in events(finished.run_dir, "resumed")] == [3]
    assert losses(finished.run_dir) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_code_in_the_metadata_is_not_executed_even_with_a_matching_manifest(
    start: Starter, finished: Finished, tmp_path: Path
) -> None:
    checkpoints = finished.run_dir / "checkpoints"
    for step in (9, 6, 3):
        (checkpoints / f"step-0000000{step}" / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    redigest(checkpoints / "step-00000006")
    old = checkpoints / "step-00000003" / "muster.json"
    described = {k: v for k, v in json.loads(old.read_text()).items() if k not in ("files", "sha256")}
    old.write_text(json.dumps(described))

    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [1], again.log_text()
    assert not (tmp_path / "ran").exists()
    assert [".metadata must have" in unreadable(finished.run_dir)[0]] == [True]
    assert ["mkdir" in message for message in unreadable(finished.run_dir)[1:]] == [True, True]


@pytest.mark.slow
def test_a_fifo_in_a_checkpoint_is_named_and_the_previous_checkpoint_is_used(
    start: Starter, finished: Finished
) -> None:
    checkpoints = finished.run_dir / "checkpoints"
    for name in ("step-00000009/muster.json", f"step-00000006/{SHARD}"):
        (checkpoints / name).unlink()
        os.mkfifo(checkpoints / name)
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK], again.log_text()
    first, second = unreadable(finished.run_dir)
    assert ["step-00000009" in first, "muster.json" in first, "must be a regular file" in first] == [True] * 3
    assert ["step-00000006" in second, SHARD in second, "must be a regular file" in second] == [True] * 3
    assert [event["step"] for event in events(finished.run_dir, "resumed")] == [3]


@pytest.mark.slow
def test_a_checkpoint_without_digests_is_loaded_and_an_event_is_recorded(start: Starter, finished: Finished) -> None:
    for manifest in finished.run_dir.glob("checkpoints/step-*/muster.json"):
        described = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({k: v for k, v in described.items() if k not in ("files", "sha256")}))
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK], again.log_text()
    assert [event["step"] for event in events(finished.run_dir, "checkpoint_unverified")] == [9]
    assert [event["step"] for event in events(finished.run_dir, "resumed")] == [9]


@pytest.mark.slow
def test_a_checkpoint_lists_all_its_files_and_unlisted_files_are_ignored(start: Starter, finished: Finished) -> None:
    checkpoint = finished.run_dir / "checkpoints" / "step-00000009"
    described = json.loads((checkpoint / "muster.json").read_text())
    listed = {file["name"]: file["bytes"] for file in described["files"]}
    assert listed == {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.name != "muster.json"}
    assert list(listed) == ["__0_0.distcp", "__1_0.distcp", ".metadata"]
    (checkpoint / "__2_0.distcp").write_bytes(b"not of this checkpoint")
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK], again.log_text()
    assert [event["step"] for event in events(finished.run_dir, "resumed")] == [9]


def saved(folder: Path, state: dict[str, Any]) -> tuple[FileDigest, ...]:
    save(state, checkpoint_id=folder, no_dist=True)
    return digest(folder / SHARD), digest(folder / ".metadata")


def loaded(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    reader = CheckedReader(folder, read_metadata(folder, None))
    load(state, storage_reader=reader, planner=CheckedPlanner(), no_dist=True)
    return state


@pytest.mark.filterwarnings("ignore")
def test_digests_computed_while_writing_match_the_files_and_the_state_can_be_loaded(tmp_path: Path) -> None:
    state = {"weights": torch.arange(100_000.0), "options": {"betas": (0.9, 0.95), "lr": 0.1, "fused": None}}
    files = saved(tmp_path, state)
    assert files == (digest(tmp_path / SHARD), digest(tmp_path / ".metadata"))
    verify_files(tmp_path, files)
    empty = {"weights": torch.zeros(100_000), "options": {"betas": (0.0, 0.0), "lr": 0.0, "fused": False}}
    back = loaded(tmp_path, empty)
    assert torch.equal(back["weights"], state["weights"])  # type: ignore[arg-type]
    assert back["options"] == state["options"]


@pytest.mark.filterwarnings("ignore")
def test_code_in_a_value_other_than_a_tensor_is_not_executed(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint", {"weights": torch.zeros(3), "options": {"lr": Runs(tmp_path / "ran")}})
    with pytest.raises(BaseException, match="mkdir"):
        loaded(tmp_path / "checkpoint", {"weights": torch.zeros(3), "options": {"lr": 0.1}})
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_metadata_that_refers_to_files_outside_the_checkpoint_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path / "other", {"weights": torch.zeros(3)})
    folder = tmp_path / "checkpoint"
    saved(folder, {"weights": torch.ones(3)})
    metadata: Metadata = read_metadata(folder, {SHARD})
    metadata.storage_meta = None
    for elsewhere in ("../other/" + SHARD, str(tmp_path / "other" / SHARD), "__7_0.distcp"):
        for stored in metadata.storage_data.values():
            stored.relative_path = elsewhere
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(ValueError, match="must refer to files of this checkpoint"):
            read_metadata(folder, {SHARD})


@pytest.mark.parametrize("content", [b"", b"garbage", *map(pickle.dumps, ({"no": "metadata"}, io.BytesIO, torch.load))])
def test_invalid_metadata_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
        read_metadata(tmp_path, None)


@pytest.mark.filterwarnings("ignore")
def test_a_fifo_for_the_metadata_a_listed_file_or_a_shard_without_digest_is_an_error(tmp_path: Path) -> None:
    listed = saved(tmp_path, {"weights": torch.ones(3)})
    metadata = read_metadata(tmp_path, {SHARD})
    for name in (SHARD, ".metadata"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(OSError, match="must be a regular file"):
            verify_files(tmp_path, [file for file in listed if file.name == name])
    with pytest.raises(OSError, match="must be a regular file"):
        read_metadata(tmp_path, None)
    with pytest.raises(BaseException, match="must be a regular file"):
        load(
            {"weights": torch.zeros(3)},
            storage_reader=CheckedReader(tmp_path, metadata),
            planner=CheckedPlanner(),
            no_dist=True,
        )


@pytest.mark.filterwarnings("ignore")
def test_a_file_of_a_checkpoint_may_be_a_symbolic_link(tmp_path: Path) -> None:
    listed = saved(tmp_path / "checkpoint", {"weights": torch.ones(3)})
    shard = tmp_path / "checkpoint" / SHARD
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    verify_files(tmp_path / "checkpoint", listed)
    assert loaded(tmp_path / "checkpoint", {"weights": torch.zeros(3)})["weights"].tolist() == [1.0] * 3


def test_a_file_above_the_size_limit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_regular(tmp_path / "a", max_bytes=10) == b"x" * 10
    with pytest.raises(ValueError, match="a: must have at most 9 bytes"):
        read_regular(tmp_path / "a", max_bytes=9)


class AsGetattr:
    """Pickled as `getattr(of, name)`: so Python 3.11.0 to 3.11.3 pickle a member of an enum."""

    def __init__(self, of: object, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.of, self.name)


def test_members_of_an_enum_in_metadata_are_read_as_each_python_writes_them(tmp_path: Path) -> None:
    member = dcp._MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    for content in (member, AsGetattr(dcp._MEM_FORMAT_ENCODING, member.name)):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(content, protocol=4))
        with (tmp_path / ".metadata").open("rb") as stream:
            assert MetadataUnpickler(stream).load() is member


@pytest.mark.parametrize(
    "content",
    [
        AsGetattr(dcp.Metadata, "__init__"),
        AsGetattr(dcp._MEM_FORMAT_ENCODING, "__class__"),
        AsGetattr(AsGetattr(dcp._MEM_FORMAT_ENCODING, "__init__"), "__globals__"),
    ],
)
def test_metadata_cannot_get_other_attributes(tmp_path: Path, content: AsGetattr) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(pickle.UnpicklingError, match=r"\.metadata must get members of its enum only"):
        read_metadata(tmp_path, None)


@pytest.mark.parametrize(
    "kind", [dcp.Metadata, dcp.MetadataIndex, dcp._MEM_FORMAT_ENCODING, torch.Size, "an instance", "a member"]
)
@pytest.mark.parametrize("in_slots", [True, False])
def test_metadata_may_only_set_fields_of_its_own_objects(tmp_path: Path, kind: Any, in_slots: bool) -> None:
    attributes = {"muster_test_attribute": 1}
    target = {"an instance": dcp.StorageMeta(), "a member": dcp._MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT}
    content = io.BytesIO()
    pickler: Any = pickle._Pickler(content, protocol=4)
    pickler.framer.start_framing()
    pickler.save(target.get(kind, kind) if isinstance(kind, str) else kind)
    pickler.save((None, attributes) if in_slots else attributes)
    pickler.write(pickle.BUILD + pickle.STOP)
    pickler.framer.end_framing()
    (tmp_path / ".metadata").write_bytes(pickle.PROTO + b"\x04" + content.getvalue())
    with pytest.raises(pickle.UnpicklingError, match="must set"):
        read_metadata(tmp_path, None)
    assert not any(hasattr(of, "muster_test_attribute") for of in (kind, *target.values()))


def test_a_missing_a_truncated_and_a_changed_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "b").write_bytes(b"y" * 5000)
    files = (digest(tmp_path / "a"), digest(tmp_path / "b"))
    verify_files(tmp_path, files)
    flip_byte(tmp_path / "b", 4999)
    with pytest.raises(ValueError, match="b must have sha256"):
        verify_files(tmp_path, files)
    (tmp_path / "b").write_bytes(b"y" * 4999)
    with pytest.raises(ValueError, match="b must have 5,000 bytes; got 4,999"):
        verify_files(tmp_path, files)
    (tmp_path / "b").unlink()
    with pytest.raises(FileNotFoundError):
        verify_files(tmp_path, files)


def test_a_changed_manifest_is_an_error_and_one_without_digests_is_recognised() -> None:
    files = (FileDigest("a", 5, "0" * 64),)
    described = json.loads(json.dumps(with_digests({"step": 3, "seed": 0, "lr": 0.1}, files)))
    assert read_digests(described) == files
    assert read_digests({"step": 3, "seed": 0}) is None
    changes: list[dict[str, object]] = [{"seed": 1}, {"files": []}, {"files": None}, {"sha256": "0"}, {"more": 1}]
    for change in changes:
        with pytest.raises(ValueError, match="sha256"):
            read_digests({**described, **change})
    with pytest.raises(ValueError, match="sha256"):
        read_digests({name: value for name, value in described.items() if name != "sha256"})
    endless = {"name": "a", "bytes": float("inf"), "sha256": ""}
    wrongs: list[object] = [[{"name": "../a", "bytes": 1, "sha256": ""}], [{}], 3, [3], [endless]]
    for wrong in wrongs:
        with pytest.raises((ValueError), match="files must"):
            read_digests(with_raw_files(wrong))


def with_raw_files(files: object) -> dict[str, object]:
    """A manifest with a valid digest of an invalid list of files."""
    from muster_components.trainer.checkpoint_manifest import _digest

    content: dict[str, object] = {"step": 3, "files": files}
    return {**content, "sha256": _digest(content)}


def nested(levels: int) -> tuple[Any, ...]:
    """Tuples whose hash takes 2^levels steps; no process computes it."""
    found: tuple[Any, ...] = (0,)
    for _ in range(levels):
        found = (found, found)
    return found


def pickled_dict(key: object) -> bytes:
    """A dict with this key, which is not hashed here."""
    content = io.BytesIO()
    pickler: Any = pickle._Pickler(content, protocol=4)  # as torch
    content.write(pickle.PROTO + b"\x04" + pickle.EMPTY_DICT)
    pickler.save(key)
    content.write(pickle.NONE + pickle.SETITEM + pickle.STOP)
    return content.getvalue()


def with_fields(**fields: object) -> dcp.MetadataIndex:
    index = dcp.MetadataIndex("a")
    index.__dict__.update(fields)
    return index


@pytest.mark.parametrize(
    "key",
    [
        nested(60),
        with_fields(fqn=nested(60)),
        with_fields(offset=nested(60)),
        with_fields(index=nested(60)),
        7,
        dcp.TensorProperties(),
    ],
    ids=["tuples", "name", "offset", "index", "integer", "another class"],
)
def test_keys_of_metadata_are_strings_and_plain_indices(tmp_path: Path, key: object) -> None:
    (tmp_path / ".metadata").write_bytes(pickled_dict(key))
    with pytest.raises(pickle.UnpicklingError, match="must have keys that are strings and indices"):
        read_metadata(tmp_path, None)


@pytest.mark.parametrize(
    "content",
    [
        b"(K\x00\x85" + b"2\x86" * 60 + b"l.",
        b"\x8f(" + b"K\x00\x85" + b"2\x86" * 60 + b"\x90.",
        b"X\x00\x20\x00\x00" + b"a" * 8192 + b".",
        b"\x8a\xff" + b"\x01" * 255 + b".",
        b"ctorch\nSize\n(" + b"K\x01" * 65 + b"t\x85R.",
        b"cpathlib\nPosixPath\n(" + b"X\x01\x00\x00\x00a" * 300 + b"tR.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata\nN\x85\x81.",
    ],
    ids=["copies", "a set", "a long string", "a long integer", "many dimensions", "a long path", "arguments"],
)
def test_metadata_that_takes_long_to_use_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + content)
    with pytest.raises(pickle.UnpicklingError, match=r"\.metadata must"):
        read_metadata(tmp_path, None)


NESTED_LISTS = b"]q\x00" + b"".join(b"]h%ch%c\x65q%c" % (at, at, at + 1) for at in range(60)).replace(b"]h", b"](h")
NESTED_TUPLES = b"Nq\x00" + b"".join(b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(60))
ENCODING = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
LONG_PATH = b"X\x00\x10\x00\x00" + b"a/" * 2048 + b"q\x00(" + b"h\x00" * 256 + b"tq\x01cpathlib\nPosixPath\nq\x02"


ENDLESS = {
    "function": NESTED_LISTS + b"NR.",
    "class": NESTED_LISTS + b"N\x81.",
    "hash of a class": NESTED_TUPLES + b")\x81.",
    "arguments": b"ctorch.distributed.checkpoint.metadata\nMetadata\n" + NESTED_TUPLES + b"\x81.",
    "member": NESTED_LISTS + b"q\xf0" + ENCODING + b"h\xf0\x85R.",
    "hash of a member": NESTED_TUPLES + b"q\xf0" + ENCODING + b"h\xf0\x85R.",
    "attribute": NESTED_LISTS + b"q\xf0cbuiltins\ngetattr\nh\xf0X\x01\x00\x00\x00a\x86R.",
    "layout": NESTED_LISTS + b"q\xf0ctorch.serialization\n_get_layout\nh\xf0\x85R.",
    "path": LONG_PATH + b"](" + b"h\x02h\x01R" * 2000 + b"e.",
}


def test_metadata_whose_values_have_endless_texts_is_refused_at_once(tmp_path: Path) -> None:
    """The text, or the hash, of lists of lists in a pickle of 500 bytes takes 2^60 steps."""
    for name, content in ENDLESS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ".metadata").write_bytes(b"\x80\x02" + content)
    program = """
import resource, sys
from pathlib import Path
from muster_components.trainer.checkpoint_files import read_metadata
used = resource.getrusage(resource.RUSAGE_SELF)
resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 10,) * 2)
resource.setrlimit(resource.RLIMIT_AS, (16 << 30,) * 2)
for folder in sys.argv[1:]:
    try:
        read_metadata(Path(folder), None)
    except Exception as error:
        print(Path(folder).name if ".metadata must" in str(error) else error, flush=True)
"""
    command = [sys.executable, "-c", program, *(str(tmp_path / name) for name in ENDLESS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == list(ENDLESS), ended.stderr


@pytest.mark.filterwarnings("ignore")
def test_sizes_of_tensors_and_names_of_files_that_are_lists_are_not_shown(tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.ones(3)})
    endless: Any = []
    for _ in range(60):
        endless = [endless, endless]
    for changed in ("size", "file"):
        metadata = read_metadata(tmp_path, {SHARD})
        metadata.storage_meta = None
        if changed == "size":
            metadata.state_dict_metadata["a"].size = endless  # type: ignore[union-attr]
        else:
            next(iter(metadata.storage_data.values())).relative_path = endless
        folder = tmp_path / changed
        folder.mkdir()
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(ValueError, match=r"with a size of numbers|files of this checkpoint; got a list"):
            read_metadata(folder, {SHARD})


def test_indices_with_equal_hashes_are_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    pickler: Any = pickle._Pickler(content, protocol=4)  # as torch
    content.write(pickle.PROTO + b"\x04" + pickle.EMPTY_DICT)
    for number in range(20):
        pickler.save(dcp.MetadataIndex("a", index=number))  # which is in no hash
        content.write(pickle.NONE + pickle.SETITEM)
    content.write(pickle.STOP)
    (tmp_path / ".metadata").write_bytes(content.getvalue())
    with pytest.raises(pickle.UnpicklingError, match="must have keys"):
        read_metadata(tmp_path, None)


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_share_a_list_of_chunks_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.ones(3), "b": torch.ones(3)})
    metadata = read_metadata(tmp_path, {SHARD})
    chunks = [one.chunks[0] for one in metadata.state_dict_metadata.values()]  # type: ignore[union-attr]
    for stored in metadata.state_dict_metadata.values():
        stored.chunks = chunks  # type: ignore[union-attr]
    metadata.storage_meta = None
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="must have a place in a file for each chunk"):
        read_metadata(tmp_path, {SHARD})


def with_pickle(content: bytes) -> bytes:
    """A file as torch.save writes it, with this pickle."""
    saved = io.BytesIO()
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return saved.getvalue()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["weights", "lr"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x80\x02}K\x00\x85" + b"".join(b"q%ch%c\x86" % (at, at) for at in range(60)) + b"Ns.", "at most 8 values"),
        (b"\x80\x02" + b"N0" * 40_000 + b"N.", "must have 65536 bytes"),
    ],
    ids=["nested tuples as a key", "a long pickle"],
)
def test_a_value_that_takes_long_to_load_is_refused(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    saved(tmp_path, {"weights": torch.ones(3), "lr": 0.1})
    metadata = read_metadata(tmp_path, {SHARD})
    hostile = with_pickle(content)
    shard = tmp_path / SHARD
    (stored,) = (one for index, one in metadata.storage_data.items() if index.fqn == name)
    stored.offset, stored.length = shard.stat().st_size, len(hostile)
    shard.write_bytes(shard.read_bytes() + hostile)
    reader = CheckedReader(tmp_path, metadata)
    with pytest.raises(BaseException, match=why):
        load({"weights": torch.zeros(3), "lr": 0.0}, storage_reader=reader, planner=CheckedPlanner(), no_dist=True)


@pytest.mark.slow
def test_metadata_with_an_expensive_key_is_named_and_the_previous_checkpoint_is_used(
    start: Starter, finished: Finished
) -> None:
    checkpoint = finished.run_dir / "checkpoints" / "step-00000009"
    (checkpoint / ".metadata").write_bytes(pickled_dict(nested(60)))
    redigest(checkpoint)
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK], again.log_text()
    assert ["must have keys that are strings" in message for message in unreadable(finished.run_dir)] == [True]
    assert [event["step"] for event in events(finished.run_dir, "resumed")] == [6]
