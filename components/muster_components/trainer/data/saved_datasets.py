"""Data sets that Hugging Face's library `datasets` has saved to a folder (`save_to_disk`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.data.corpus import EMPTY, TextSource, Write
from muster_components.trainer.data.samples import MappedFile, TokenArray
from muster_components.trainer.data.tokenizer import Encoder
from muster_components.trainer.errors import InputError, install_extra
from muster_components.trainer.regular_files import open_regular, read_json

DATASET_FILES: Final = ("state.json", "dataset_info.json", "dataset_dict.json")
TEXT: Final = "text"
TOKENS: Final = "input_ids"
_ROWS_AT_ONCE: Final = 1000
_MAX_STATE_BYTES: Final = 64 << 20


def is_saved_dataset(path: str) -> bool:
    """Whether the folder has the files of a saved data set, or of a dictionary of them."""
    folder = Path(path).expanduser()
    return any((folder / name).is_file() for name in DATASET_FILES)


def open_saved_dataset(path: str) -> Any:
    """The data set; of a dictionary of splits, `train`. Raises InputError."""
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError as error:
        raise InputError(
            f"--data {path} is a saved data set of Hugging Face; {install_extra('datasets')} ({error})"
        ) from error
    try:
        _require_regular_files(Path(path).expanduser())
        dataset = load_from_disk(str(Path(path).expanduser()))
    except Exception as error:  # of pyarrow, of json, or of the library
        raise InputError(f"--data {path} cannot be read as a saved data set: {error}") from error
    if not isinstance(dataset, DatasetDict):
        return dataset
    if "train" not in dataset:
        raise InputError(f"--data {path} has no split train; give the folder of one of {', '.join(dataset)}")
    return dataset["train"]


def _require_regular_files(folder: Path) -> None:
    """The library would block for a FIFO. Raises OSError, and what the content of `state.json` leads to."""
    for state in (*folder.glob("state.json"), *folder.glob("*/state.json")):
        for file in read_json(state, _MAX_STATE_BYTES)["_data_files"]:
            open_regular(state.parent / file["filename"]).close()


def text_source(path: str, dataset: Any, encoder: Encoder) -> TextSource:
    """The rows of the column `text`, each followed by the separator."""
    return TextSource(path, functools.partial(_append_rows, dataset, encoder))


def token_arrays(path: str, dataset: Any) -> list[TokenArray]:
    """The column `input_ids` without copies: the rows of a record batch follow each other. Raises InputError."""
    arrays, files = [], mapped_files(dataset)
    for number, chunk in enumerate(dataset.data.column(TOKENS).chunks):
        try:
            tokens = chunk.flatten().to_numpy(zero_copy_only=True)
        except (AttributeError, ValueError) as error:  # no list, or nulls
            raise InputError(f"--data {path}: column {TOKENS} must be lists of integers; got {chunk.type}") from error
        if tokens.dtype.kind not in "iu":
            raise InputError(f"--data {path}: column {TOKENS} must be lists of integers; got {chunk.type}")
        arrays.append(TokenArray(tokens, functools.partial(_place, path, number), files))
    return arrays


def mapped_files(dataset: Any) -> tuple[MappedFile, ...]:
    """The Arrow files of a saved data set; none if it was read into memory."""
    return tuple(MappedFile.at(Path(file["filename"])) for file in dataset.cache_files)


def _append_rows(dataset: Any, encoder: Encoder, write: Write) -> str:
    wrote = False
    for text in _texts(dataset):
        for tokens in encoder.encode([text.encode()]):
            write(tokens)
        write(encoder.separator)
        wrote = True
    return "" if wrote else EMPTY


def _texts(dataset: Any) -> Iterator[str]:
    """Rows that are not empty."""
    for rows in dataset.select_columns([TEXT]).with_format(None).iter(_ROWS_AT_ONCE):
        yield from (text for text in rows[TEXT] if text)


def _place(path: str, batch: int, token: int) -> str:
    return f"{path}, record batch {batch}, token {token} of {TOKENS}"
