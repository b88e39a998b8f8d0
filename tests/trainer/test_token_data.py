"""Token files, tokenizers, saved data sets and dictionaries as samples; errors name the file and the place."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trainer.conftest import write_text

from muster_components.trainer.config import DataConfig
from muster_components.trainer.data.corpus import build_corpus
from muster_components.trainer.data.samples import FieldSamples, SampleSpec, TokenArray, TokenSamples
from muster_components.trainer.data.tokenizer import TokenizerEncoder
from muster_components.trainer.data.training_data import TrainingData, open_data
from muster_components.trainer.errors import InputError, TrainerError

NEXT_TOKEN = SampleSpec("next_token", weight=4, seq_len=4, vocab_size=60_000)
FIELDS = SampleSpec("fields", weight=1)


def opened(path: object, cache: Path, spec: SampleSpec = NEXT_TOKEN, **options: Any) -> TrainingData:
    return open_data(DataConfig(path=str(path), **options), spec, cache / "cache")


def windows(data: TrainingData) -> list[list[int]]:
    rows: list[list[int]] = data.samples.read(np.arange(len(data.samples)))["tokens"].tolist()
    return rows


@pytest.mark.parametrize(("dtype", "options"), [("uint16", {}), ("uint32", {"token_dtype": "uint32"})])
def test_a_bin_file_is_read_in_windows(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    np.arange(50_000, 50_009, dtype=dtype).tofile(tmp_path / "train.bin")
    data = opened(tmp_path / "train.bin", tmp_path, **options)
    assert windows(data) == [list(range(50_000, 50_005)), list(range(50_004, 50_009))]


def test_windows_of_a_masked_model_do_not_overlap(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "train.bin")
    spec = SampleSpec("tokens", weight=1, seq_len=4, vocab_size=8)
    assert windows(opened(tmp_path / "train.bin", tmp_path, spec)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_npy_file_and_several_files_of_a_glob(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.arange(10, 15, dtype=np.int32))
    np.arange(20, 25, dtype=np.uint16).tofile(tmp_path / "a.bin")
    assert windows(opened(tmp_path / "b.npy", tmp_path)) == [[10, 11, 12, 13, 14]]
    both = opened(f"{tmp_path}/*.[bn]*", tmp_path)
    assert windows(both) == [[20, 21, 22, 23, 24], [10, 11, 12, 13, 14]]
    assert both.samples.read(np.array([1, -1]))["tokens"].tolist() == [[10, 11, 12, 13, 14], [-1] * 5]


def test_a_token_beyond_the_vocabulary_is_named_with_file_and_byte(tmp_path: Path) -> None:
    np.array([0, 1, 2, 3, 60_000, 4, 5, 6, 7], dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.save(tmp_path / "train.npy", np.array([0, 1, 2, 3, 4, -7, 0, 0, 0], dtype=np.int64))
    data = opened(tmp_path / "train.bin", tmp_path)
    with pytest.raises(InputError, match=re.escape(f"got 60000 at {tmp_path}/train.bin, byte 8")):
        data.samples.read(np.array([0]))
    np.save(tmp_path / "large.npy", np.full(9, 2**63 + 5, dtype=np.uint64))
    with pytest.raises(InputError, match=f"got {2**63 + 5} at {tmp_path}/large.npy, byte 128"):
        opened(tmp_path / "large.npy", tmp_path).samples.read(np.array([0]))
    data = opened(tmp_path / "train.npy", tmp_path)
    with pytest.raises(InputError, match=re.escape(f"got -7 at {tmp_path}/train.npy, byte {128 + 5 * 8}")):
        data.samples.read(np.array([1]))


def bin_file(folder: Path) -> tuple[object, str, SampleSpec]:
    np.arange(20_000, dtype=np.uint16).tofile(folder / "x.bin")
    return folder / "x.bin", "x.bin", NEXT_TOKEN


def npy_file(folder: Path) -> tuple[object, str, SampleSpec]:
    np.save(folder / "x.npy", np.arange(20_000, dtype=np.int32))
    return folder / "x.npy", "x.npy", NEXT_TOKEN


def cached_text(folder: Path) -> tuple[object, str, SampleSpec]:
    (folder / "x.txt").write_text("text " * 5_000)
    return folder / "x.txt", "cache/*.tokens", NEXT_TOKEN


def saved_tokens(folder: Path) -> tuple[object, str, SampleSpec]:
    return saved_dataset(folder / "set", {"input_ids": [[*range(100)]] * 100}), "set/*.arrow", NEXT_TOKEN


def saved_fields(folder: Path) -> tuple[object, str, SampleSpec]:
    return saved_dataset(folder / "set", {"x": [[*range(100)]] * 100}), "set/*.arrow", FIELDS


@pytest.mark.parametrize("kind", [bin_file, npy_file, cached_text, saved_tokens, saved_fields])
def test_a_file_that_is_shortened_while_it_is_mapped_is_named_before_it_is_read(tmp_path: Path, kind: Any) -> None:
    """A read beyond its end would end the process with SIGBUS."""
    path, pattern, spec = kind(tmp_path)
    samples = opened(path, tmp_path, spec).samples
    last = np.array([len(samples) - 1])
    samples.read(last)
    (file,) = tmp_path.glob(pattern)
    size = file.stat().st_size
    os.truncate(file, 4096)
    with pytest.raises(TrainerError, match=re.escape(f"{file} was shortened while it is in use: it ends at byte 4096")):
        samples.read(last)
    file.unlink()  # a removed file can be read until it is closed; here it has lost its end
    file.write_bytes(bytes(size))
    assert samples.read(np.array([0]))  # another file has its name now


def test_a_cache_that_is_shortened_before_it_is_mapped_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("text of a file")
    corpus = build_corpus(str(tmp_path / "x.txt"), tmp_path / "cache")
    os.truncate(corpus.tokens_path, 5)
    with pytest.raises(TrainerError, match=rf"{corpus.tokens_path} was shortened .* ends at byte 5, and had 15 bytes"):
        corpus.open()


def odd_bytes(folder: Path) -> str:
    (folder / "x.bin").write_bytes(b"abc")
    return "x.bin: its size must be a multiple of 2 bytes with --token_dtype uint16, and not 0; got 3"


def no_bytes(folder: Path) -> str:
    (folder / "x.bin").touch()
    return "x.bin: its size must be a multiple of 2 bytes with --token_dtype uint16, and not 0; got 0"


def no_header(folder: Path) -> str:
    (folder / "x.npy").touch()
    return "x.npy is not a NumPy array of tokens"


def cut_short(folder: Path) -> str:
    np.save(folder / "x.npy", np.zeros(9_000, dtype=np.uint16))
    os.truncate(folder / "x.npy", 4096)
    return "x.npy is not a NumPy array of tokens"


def numbers(folder: Path) -> str:
    np.save(folder / "x.npy", np.zeros(9))
    return "x.npy must be a one-dimensional array of integers; got float64 of shape (9,)"


def matrix(folder: Path) -> str:
    np.save(folder / "x.npy", np.zeros((2, 3), dtype=np.uint16))
    return "x.npy must be a one-dimensional array of integers; got uint16 of shape (2, 3)"


def no_array(folder: Path) -> str:
    (folder / "x.npy").write_bytes(b"text")
    return "x.npy is not a NumPy array of tokens"


def objects(folder: Path) -> str:
    np.save(folder / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    return "x.npy is not a NumPy array of tokens"


def too_short(folder: Path) -> str:
    np.arange(4, dtype=np.uint16).tofile(folder / "x.bin")
    return "at least 5 tokens for --seq_len 4; got 4"


def archive(folder: Path) -> str:
    with (folder / "x.npy").open("wb") as stream:
        np.savez(stream, tokens=np.arange(9))
    return "x.npy is not a NumPy array of tokens"


def claimed_length(folder: Path, length: str) -> str:
    np.save(folder / "x.npy", np.zeros(1_000, dtype=np.uint16))
    content = (folder / "x.npy").read_bytes()
    shape = b"(1000,), }" + b" " * len(length)
    assert shape in content
    (folder / "x.npy").write_bytes(content.replace(shape, b"(%s,), }" % length.encode() + b" " * 4))
    return "x.npy is not a NumPy array of tokens"


def negative_bytes(folder: Path) -> str:
    return claimed_length(folder, str(2**62))


def beyond_integers(folder: Path) -> str:
    return claimed_length(folder, str(2**63))


@pytest.mark.parametrize(
    "damage",
    [
        odd_bytes,
        no_bytes,
        no_header,
        cut_short,
        numbers,
        matrix,
        no_array,
        objects,
        too_short,
        archive,
        negative_bytes,
        beyond_integers,
    ],
)
def test_a_wrong_token_file_is_rejected(tmp_path: Path, damage: Any) -> None:
    message = damage(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        opened(next(tmp_path.glob("x.*")), tmp_path)


def test_the_fingerprint_of_token_files_depends_on_their_content(tmp_path: Path) -> None:
    fingerprints = set()
    for last in (0, 1):
        tokens = np.zeros(3_000_000, dtype=np.uint16)
        tokens[-1] = last
        tokens.tofile(tmp_path / "train.bin")
        fingerprints.add(opened(tmp_path / "train.bin", tmp_path).fingerprint)
    assert len(fingerprints) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "tokenizer.json"}, "--tokenizer is for text"),
        ({"token_dtype": "uint16", "path": "x.txt"}, "--token_dtype is for .bin files"),
    ],
)
def test_flags_that_do_not_fit_the_data_are_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "x.bin")
    (tmp_path / "x.txt").write_text("text of a file")
    path = tmp_path / options.pop("path", "x.bin")
    with pytest.raises(InputError, match=message):
        opened(path, tmp_path, **options)


def tokenizer_folder(folder: Path, text: str, config: dict[str, Any] | None = None) -> Path:
    """A byte-level BPE tokenizer as GPT-2's, trained on `text`."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=300, min_frequency=1, special_tokens=["<|end|>", "[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_text_is_encoded_by_a_tokenizer_and_separated_by_its_end_token(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    text = write_text(tmp_path)
    parts = [file.read_text() for file in sorted(text.iterdir())]
    folder = tokenizer_folder(tmp_path / "tokenizer", parts[0], {"eos_token": {"content": "<|end|>"}})
    spec = SampleSpec("tokens", weight=1, seq_len=1, vocab_size=300)
    data = opened(text, tmp_path, spec, tokenizer=str(folder))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [token for part in parts for token in (*tokenizer.encode(part).ids, 0)]
    assert [row[0] for row in windows(data)] == expected
    assert data.fingerprint != opened(text, tmp_path).fingerprint
    assert windows(opened(text, tmp_path, spec, tokenizer=str(folder / "tokenizer.json"))) == windows(data)


def test_a_long_text_is_encoded_in_pieces_as_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_components.trainer.data.tokenizer._TEXT_CHARACTERS", 100)
    text = "".join(f"Line {i}, é€ and   spaces.\n{'  ' * (i % 3)}Next\n\n" for i in range(300))
    encoder = TokenizerEncoder(str(tokenizer_folder(tmp_path / "tokenizer", text)))
    data = text.encode()
    pieces = list(encoder.encode(data[i : i + 7] for i in range(0, len(data), 7)))
    assert len(pieces) > 50
    whole = encoder._tokenizer.encode(text).ids
    assert np.frombuffer(b"".join(pieces), encoder.dtype).tolist() == whole
    assert encoder.separator == b""


def test_special_tokens_are_those_of_the_tokenizers_configuration(tmp_path: Path) -> None:
    config = {"eos_token": None, "sep_token": "<|end|>", "mask_token": "[MASK]"}
    encoder = TokenizerEncoder(str(tokenizer_folder(tmp_path / "tokenizer", "a b", config)))
    assert encoder.separator == np.array([0], np.uint16).tobytes()
    assert encoder.special_tokens.mask == 1


def test_a_tokenizer_with_more_tokens_than_the_model_is_rejected(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", "some text")
    spec = SampleSpec("next_token", weight=4, seq_len=4, vocab_size=200)
    with pytest.raises(InputError, match=rf"--vocab_size must be at least \d+, the tokens of --tokenizer {folder}"):
        opened(write_text(tmp_path), tmp_path, spec, tokenizer=str(folder))
    with pytest.raises(InputError, match="at least 256, the tokens of bytes; the model has 200"):
        opened(tmp_path / "text", tmp_path, spec)


def test_a_tokenizer_has_as_many_tokens_as_its_largest_one_requires(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 70_000, "?": 1}, "unk_token": "?"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    encoder = TokenizerEncoder(str(tmp_path))
    assert encoder.vocab_size == 70_001
    assert np.frombuffer(b"".join(encoder.encode([b"a"])), encoder.dtype).tolist() == [70_000]


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "must contain a JSON object; got list"), ("[" * 100_000, "nested too deeply"), (None, "a regular file")],
)
def test_a_wrong_configuration_of_a_tokenizer_is_rejected(tmp_path: Path, content: str | None, message: str) -> None:
    path = tokenizer_folder(tmp_path / "tokenizer", "a b") / "tokenizer_config.json"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=rf"{path}.*{message}"):
        TokenizerEncoder(str(path.parent))


@pytest.mark.parametrize(("content", "message"), [(None, "must be a tokenizer.json"), ("{", "cannot be read")])
def test_a_wrong_tokenizer_file_is_rejected(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=message):
        opened(write_text(tmp_path), tmp_path, tokenizer=str(tmp_path / "tokenizer.json"))


def saved_dataset(folder: Path, columns: dict[str, list[Any]]) -> Path:
    from datasets import Dataset

    Dataset.from_dict(columns).save_to_disk(folder)
    return folder


def test_the_text_of_a_saved_data_set_is_read_and_cached(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "set", {"text": ["ab", "", "cde"], "url": ["x", "y", "z"]})
    spec = SampleSpec("tokens", weight=1, seq_len=7, vocab_size=256)
    for _ in range(2):
        assert bytes(windows(opened(folder, tmp_path, spec))[0]) == b"ab\0cde\0"
    assert len(list((tmp_path / "cache").glob("*.tokens"))) == 1


def test_a_saved_data_set_that_claims_the_fingerprint_of_another_is_not_read_in_its_place(tmp_path: Path) -> None:
    spec = SampleSpec("tokens", weight=1, seq_len=3, vocab_size=256)
    other, mine = (saved_dataset(tmp_path / name, {"text": [name]}) for name in ("bad", "own"))
    shutil.copy(mine / "state.json", other / "state.json")
    for folder in (other, mine):
        assert bytes(windows(opened(folder, tmp_path, spec))[0]) == folder.name.encode()


def test_the_tokens_of_a_saved_data_set_are_not_copied(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "set", {"input_ids": [[1, 2, 3], [4, 5], [6, 7, 8, 70_000]]})
    data = opened(folder, tmp_path)
    assert data.samples.read(np.array([0]))["tokens"].tolist() == [[1, 2, 3, 4, 5]]
    with pytest.raises(InputError, match=re.escape(f"got 70000 at {folder}, record batch 0, token 8 of input_ids")):
        data.samples.read(np.array([1]))
    assert not (tmp_path / "cache").exists()


def test_of_a_dictionary_of_splits_train_is_read(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {name: Dataset.from_dict({"input_ids": [[i] * 5]}) for i, name in enumerate(("test", "train"))}
    DatasetDict(splits).save_to_disk(tmp_path / "set")
    assert windows(opened(tmp_path / "set", tmp_path)) == [[1] * 5]
    assert windows(opened(tmp_path / "set" / "test", tmp_path)) == [[0] * 5]
    DatasetDict({"test": splits["test"]}).save_to_disk(tmp_path / "other")
    with pytest.raises(InputError, match="no split train; give the folder of one of test"):
        opened(tmp_path / "other", tmp_path)


def test_the_columns_of_a_saved_data_set_are_the_fields_of_samples(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "set", {"pixel_values": [[[[0.5]]], [[[1.5]]]], "labels": [3, 4]})
    rows = opened(folder, tmp_path, FIELDS).samples.read(np.array([1, 0, -1]))
    assert rows["pixel_values"].tolist() == [[[[1.5]]], [[[0.5]]], [[[0.5]]]]
    assert rows["labels"].tolist() == [4, 3, -100]


def test_a_saved_data_set_without_text_or_tokens_is_rejected_with_its_columns(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "set", {"label": [1], "content": ["a"]})
    with pytest.raises(InputError, match="must have the column text or input_ids; it has label, content"):
        opened(folder, tmp_path)


def test_a_damaged_saved_data_set_is_rejected(tmp_path: Path) -> None:
    folder = saved_dataset(tmp_path / "set", {"text": ["a"]})
    next(folder.glob("*.arrow")).write_bytes(b"no arrow file")
    with pytest.raises(InputError, match=f"--data {folder} cannot be read as a saved data set"):
        opened(folder, tmp_path)


def test_a_pipe_in_a_saved_data_set_is_rejected_without_waiting_for_a_writer(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict(train=Dataset.from_dict({"text": ["a"]})).save_to_disk(tmp_path / "set")
    for folder in (tmp_path / "set", tmp_path / "set" / "train"):
        file = next((tmp_path / "set" / "train").glob("*.arrow"))
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(InputError, match=f"--data {folder} cannot be read as a saved data set.*regular file"):
            opened(folder, tmp_path)


def test_a_saved_data_set_needs_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved_dataset(tmp_path / "set", {"text": ["a"]})
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=re.escape("pip install '/path/to/muster[datasets]'")):
        opened(folder, tmp_path)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with data sets."""
    name = f"data_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "numbers = [{'x': float(i), 'y': [i, i]} for i in range(3)]\n"
        "def made(): return numbers\n"
        "uneven = [{'x': [1]}, {'x': [1, 2]}]\n"
        "texts = [{'x': 'text'}]\n"
        "ragged = [{'x': [[1], [1, 2]]}]\n"
        "tuples = [(1, 2)]\n"
        "empty = []\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("name", ["numbers", "made"])
def test_a_data_set_of_a_module_is_stacked(tmp_path: Path, module: str, name: str) -> None:
    data = opened(f"{module}:{name}", tmp_path, FIELDS)
    rows = data.samples.read(np.array([2, 0]))
    assert {field: array.tolist() for field, array in rows.items()} == {"x": [2.0, 0.0], "y": [[2, 2], [0, 0]]}
    assert data.fingerprint == f"3 samples of {module}:{name}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("texts", "sample 0 field 'x' must be numbers; got str"),
        ("ragged", "sample 0 field 'x' must be numbers that NumPy has; got list"),
        ("tuples", "sample 0 must be a dictionary; got tuple"),
        ("empty", "must have at least one sample"),
        ("number", "must have __len__ and __getitem__; got int"),
        ("absent", "has no 'absent'"),
        ("numbr", "has no 'numbr'; did you mean 'number'?"),
    ],
)
def test_a_wrong_data_set_is_rejected_with_the_sample(tmp_path: Path, module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        opened(f"{module}:{name}", tmp_path, FIELDS)


def test_samples_of_different_shapes_are_rejected_with_both(tmp_path: Path, module: str) -> None:
    data = opened(f"{module}:uneven", tmp_path, FIELDS)
    with pytest.raises(
        InputError, match=re.escape("sample 1 must have the fields and shapes of sample 0, {'x': (1,)}")
    ):
        data.samples.read(np.array([0, 1]))


@pytest.mark.parametrize(
    ("path", "spec", "message"),
    [
        ("no_such_module:data", FIELDS, "no module 'no_such_module'"),
        ("some_module:data", NEXT_TOKEN, "needs text or tokens"),
        ("text", FIELDS, "needs a data set of dictionaries"),
    ],
)
def test_data_of_the_wrong_kind_is_rejected(tmp_path: Path, path: str, spec: SampleSpec, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        opened(path, tmp_path, spec)


def test_torch_tensors_in_samples_are_read() -> None:
    torch = pytest.importorskip("torch")
    samples = FieldSamples([{"x": torch.ones(2)}], "data")
    assert samples.read(np.array([0]))["x"].tolist() == [[1.0, 1.0]]


def test_a_tensor_of_a_type_that_numpy_lacks_is_rejected_with_its_field() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"--data d: sample 0 field 'x' .* got Tensor: .*BFloat16"):
        FieldSamples([{"x": torch.ones(2, dtype=torch.bfloat16)}], "d")


def test_an_error_of_the_data_set_has_a_note_with_the_sample() -> None:
    class Broken(list[dict[str, float]]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2:
                raise OSError("disk error")
            return super().__getitem__(index)

    samples = FieldSamples(Broken([{"x": 1.0}] * 3), "d")
    with pytest.raises(OSError, match="disk error") as raised:
        samples.read(np.array([0, 2]))
    assert raised.value.__notes__ == ["--data d: sample 2 cannot be read"]


def test_the_window_of_every_index_is_that_of_its_file() -> None:
    arrays = [TokenArray(np.arange(n, dtype=np.uint16) + 100 * n) for n in (3, 11, 0, 6)]
    samples = TokenSamples(arrays, 5)
    assert len(samples) == 3
    assert samples.read(np.array([2, 0, 1]))["tokens"][:, 0].tolist() == [600, 1100, 1105]
