"""Host memory for checkpoints: of the process, or of the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster_components.trainer import host_buffer
from muster_components.trainer.checkpoint_memory import HEADER_BYTES
from muster_components.trainer.host_buffer import HostBuffer


def resident_bytes(handle: int) -> int:
    return os.fstat(handle).st_blocks * 512


@pytest.mark.parametrize("option", [host_buffer._MADV_POPULATE_WRITE, 9999])
def test_pages_are_allocated_in_pieces_whether_or_not_the_kernel_does_so_on_request(
    option: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_buffer, "_MADV_POPULATE_WRITE", option)
    monkeypatch.setattr(host_buffer, "_PIECE_BYTES", 1 << 20)
    owner = os.memfd_create("test")
    buffer = HostBuffer(3 << 19, 1, pin=False, owner=owner)
    assert buffer.outlives_rank
    assert buffer.size == HEADER_BYTES + (3 << 19)
    assert resident_bytes(owner) == 0
    buffer._populate(1 << 20)
    assert resident_bytes(owner) == 1 << 20
    buffer._populate(0)
    assert resident_bytes(owner) == buffer.size
    assert not any(buffer.memory)
    os.close(owner)


def test_where_the_memory_of_the_owner_cannot_be_extended_it_is_that_of_the_process(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)  # as a limit of file sizes, it cannot be extended
    buffer = HostBuffer(1 << 16, 2, pin=False, owner=handle)
    assert not buffer.outlives_rank
    buffer.memory[buffer.start(1)] = 7
    assert buffer.memory[buffer.start(1)] == 7
    os.close(handle)
