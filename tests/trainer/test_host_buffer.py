"""Host memory for checkpoints: of the process, or of the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster_components.trainer import host_buffer
from muster_components.trainer.checkpoint_memory import HEADER_BYTES, MEMORY_VARIABLE, memory_name, owned_memory
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


def test_only_the_memory_of_this_rank_is_used_whatever_file_has_its_number(tmp_path: Path) -> None:
    """What a rank starts, such as torchrun, inherits the variable, and closes the file."""
    own, other = os.memfd_create(memory_name(1)), os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    found = [owned_memory({MEMORY_VARIABLE: str(one), "RANK": "1"}) for one in (own, other, 9999, "x", "")]
    assert found == [own, None, None, None, None]
    assert owned_memory({MEMORY_VARIABLE: str(own), "RANK": "0"}) is None
    assert owned_memory({MEMORY_VARIABLE: str(own)}) is None
    os.close(own)
    os.close(other)


def test_where_the_memory_of_the_owner_cannot_be_extended_it_is_that_of_the_process(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)  # as a limit of file sizes, it cannot be extended
    buffer = HostBuffer(1 << 16, 2, pin=False, owner=handle)
    assert not buffer.outlives_rank
    buffer.memory[buffer.start(1)] = 7
    assert buffer.memory[buffer.start(1)] == 7
    os.close(handle)
