"""Files of TensorBoard and of W&B's offline runs: which scalars they have, also if they are damaged or hostile."""

from __future__ import annotations

import os
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_components.launch import event_files
from muster_components.launch.event_files import EventFile, Scalar

from .event_records import WANDB_FILE, event, field, simple, tf_record, varint


def tensorboard(folder: Path, *records: bytes) -> EventFile:
    path = folder / "events.out.tfevents.1.host.1.0"
    path.write_bytes(b"".join(tf_record(record) for record in records))
    return EventFile(path)


def test_scalars_of_tensorboard_are_simple_values_and_tensors_of_one_number(tmp_path: Path) -> None:
    float_list = field(8, varint(1 << 3) + varint(1) + field(5, struct.pack("<f", 0.5)))
    double_content = field(8, varint(1 << 3) + varint(2) + field(4, struct.pack("<d", 0.1)))
    vector = field(8, varint(1 << 3) + varint(1) + field(5, struct.pack("<ff", 1, 2)))
    file = tensorboard(
        tmp_path,
        event("loss", 1, simple(2.5)),
        event("b", 2, float_list),
        event("c", 1 << 40, double_content),
        event("vector", 4, vector),
        event("nan", 5, simple(float("nan"))),
        event("negative", (1 << 64) - 1, simple(1.0)),
    )
    assert file.read() == [Scalar("loss", 1, 2.5), Scalar("b", 2, 0.5), Scalar("c", 1 << 40, 0.1)]
    assert file.read() == []


def test_a_record_counts_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host.1.0"
    content = tf_record(event("loss", 1, simple(1.0))) + tf_record(event("loss", 2, simple(2.0)))
    file, found = EventFile(path), list[Scalar]()
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        found += file.read()
    assert found == [Scalar("loss", 1, 1.0), Scalar("loss", 2, 2.0)]


def test_a_record_of_wandb_counts_once_it_is_complete_also_over_several_blocks(tmp_path: Path) -> None:
    path, content = tmp_path / "run-a1.wandb", WANDB_FILE
    file, found = EventFile(path), list[Scalar]()
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        found += file.read()
    losses = [scalar for scalar in found if scalar.tag == "train/loss"]
    assert losses == [Scalar("train/loss", step, 1 / (step + 1)) for step in range(3)]
    assert {scalar.tag for scalar in found} == {"train/loss", "epoch", "_timestamp", "_runtime"}

    item = field(1, b"long loss") + field(16, b"7.5")
    padding = field(2, field(1, field(1, b"text") + field(16, b'"' + b"x" * 40_000 + b'"')))
    record = padding + field(2, field(1, item) + field(1, field(1, b"_step") + field(16, b"3")))
    first = 32_768 - 7 - 7
    blocks = struct.pack("<IHB", 0, first, 2) + record[:first] + struct.pack("<IHB", 0, len(record) - first, 4)
    path.write_bytes(b":W&B\xe1\xbe\x00" + blocks + record[first:])
    assert EventFile(path).read() == [Scalar("long loss", 3, 7.5)]


def test_a_long_record_is_skipped_and_much_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "MAX_READ_BYTES", 1000)
    monkeypatch.setattr(event_files, "MAX_RECORD_BYTES", 500)
    losses = [event("loss", step, simple(step)) for step in range(100)]
    file = tensorboard(tmp_path, *losses[:50], field(5, bytes(5000)), *losses[50:])
    found = [scalar for _ in range(100) for scalar in file.read()]
    assert [scalar.step for scalar in found] == list(range(100))


@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans(), st.data())
@settings(max_examples=50)
def test_any_content_is_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], is_wandb: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    content = bytearray(b"".join(tf_record(part) for part in parts))
    if is_wandb:
        content = bytearray(WANDB_FILE)
        for _ in range(20):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / ("run-a.wandb" if is_wandb else "events.out.tfevents.1.host.1.0")
    path.write_bytes(content)
    for scalar in EventFile(path).read():
        assert 0 <= scalar.step < 1 << 53


def test_a_link_or_a_fifo_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link", "missing"):
        assert EventFile(tmp_path / name).read() == []


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="`make frameworks` installs tensorboard")
def test_a_file_of_the_real_summary_writer_is_read(tmp_path: Path) -> None:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 2.5, 7)
        writer.add_scalar("train/loss", 1.5, 8, new_style=True)
        writer.add_histogram("weights", torch.arange(1000.0), 8)
    (path,) = tmp_path.iterdir()
    assert EventFile(path).read() == [Scalar("train/loss", 7, 2.5), Scalar("train/loss", 8, 1.5)]
