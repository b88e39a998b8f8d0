"""Files of tokens: `.bin` without a header, as nanoGPT and Megatron's tools write them, and NumPy's `.npy`."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from muster_components.trainer.data.samples import MappedFile, TokenArray
from muster_components.trainer.errors import InputError

SUFFIXES: Final = (".bin", ".npy")
TOKEN_DTYPES: Final = ("uint16", "uint32")
_DIGEST_BLOCKS: Final = 64
_DIGEST_BLOCK_BYTES: Final = 65536


def find_token_files(path: str) -> list[Path]:
    """The file, or the files of a glob, if all are token files; else nothing."""
    root = Path(path).expanduser()
    found = sorted(Path(match) for match in glob.iglob(str(root), recursive=True)) if glob.has_magic(path) else [root]
    return found if found and all(file.suffix in SUFFIXES and file.is_file() for file in found) else []


def open_token_files(files: Sequence[Path], token_dtype: str) -> list[TokenArray]:
    """Map the files. `token_dtype`: that of `.bin` files. Raises InputError with the file and what is wrong."""
    return [_open_npy(file) if file.suffix == ".npy" else _open_bin(file, np.dtype(token_dtype)) for file in files]


def digest_of(files: Sequence[Path]) -> str:
    """A digest of the sizes and of 64 evenly spaced blocks of each file, since files may have terabytes."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{size}\n".encode())
        with file.open("rb") as stream:
            for block in range(_DIGEST_BLOCKS):
                stream.seek(max(0, size - _DIGEST_BLOCK_BYTES) * block // (_DIGEST_BLOCKS - 1))
                digest.update(stream.read(_DIGEST_BLOCK_BYTES))
    return digest.hexdigest()


def _open_bin(file: Path, dtype: np.dtype[Any]) -> TokenArray:
    mapped = MappedFile.at(file)
    if mapped.size == 0 or mapped.size % dtype.itemsize:
        raise InputError(
            f"--data {file}: its size must be a multiple of {dtype.itemsize} bytes with --token_dtype {dtype.name}, "
            f"and not 0; got {mapped.size}"
        )
    return TokenArray(
        np.memmap(file, dtype=dtype.newbyteorder("<"), mode="r"), _Place(file, 0, dtype.itemsize), (mapped,)
    )


def _open_npy(file: Path) -> TokenArray:
    try:
        mapped = MappedFile.at(file)
        tokens: NDArray[Any] = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError, TypeError, OverflowError, EOFError) as error:
        raise InputError(f"--data {file} is not a NumPy array of tokens: {error}") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
        raise InputError(
            f"--data {file} must be a one-dimensional array of integers; got {tokens.dtype} of shape {tokens.shape}"
        )
    return TokenArray(tokens, _Place(file, int(getattr(tokens, "offset", 0)), tokens.dtype.itemsize), (mapped,))


class _Place:
    """`FILE, byte N` of a token."""

    def __init__(self, file: Path, first_byte: int, itemsize: int) -> None:
        self._file = file
        self._first_byte = first_byte
        self._itemsize = itemsize

    def __call__(self, token: int) -> str:
        return f"{self._file}, byte {self._first_byte + token * self._itemsize}"
