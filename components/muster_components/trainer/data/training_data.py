"""What `--data` names, opened as samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_components.trainer.config import DataConfig
from muster_components.trainer.data.corpus import (
    Corpus,
    SkippedText,
    build_corpus,
    cached_corpus,
    listing_digest,
    short_digest,
)
from muster_components.trainer.data.samples import (
    FieldSamples,
    MappedFile,
    Samples,
    SampleSpec,
    TokenArray,
    TokenSamples,
    UserDataset,
)
from muster_components.trainer.data.saved_datasets import (
    TEXT,
    TOKENS,
    is_saved_dataset,
    mapped_files,
    open_saved_dataset,
    text_source,
    token_arrays,
)
from muster_components.trainer.data.token_files import digest_of, find_token_files, open_token_files
from muster_components.trainer.data.tokenizer import ByteEncoder, Encoder, TokenizerEncoder
from muster_components.trainer.errors import InputError
from muster_components.trainer.user_code import is_reference, load_and_call

_DEFAULT_TOKEN_DTYPE: Final = "uint16"


@dataclass(frozen=True, slots=True)
class TrainingData:
    """`summary` is for the console; `fingerprint` must be equal on all hosts and in a checkpoint."""

    samples: Samples
    summary: str
    fingerprint: str
    skipped: tuple[SkippedText, ...] = ()


def open_data(config: DataConfig, spec: SampleSpec, cache_dir: Path, *, exclude: Path | None = None) -> TrainingData:
    """Open token files, a saved data set, a data set of the user's code, or text. Raises InputError."""
    path = config.path
    files = find_token_files(path)
    if config.token_dtype is not None and not any(file.suffix == ".bin" for file in files):
        raise InputError(f"--token_dtype is for .bin files of tokens; got --data {path!r}")
    if spec.kind == "fields" or is_reference(path):
        return _open_fields(config, spec)
    if files:
        if config.tokenizer is not None:
            raise InputError(f"--tokenizer is for text; --data {path!r} has tokens already")
        arrays = open_token_files(files, config.token_dtype or _DEFAULT_TOKEN_DTYPE)
        return _tokens(arrays, f"{len(files):,} files of {path}", digest_of(files), spec)
    if is_saved_dataset(path):
        return _open_saved_tokens(config, spec, cache_dir)
    encoder = _encoder(config, spec)
    return _text(build_corpus(path, cache_dir, encoder=encoder, exclude=exclude), path, spec)


def _open_fields(config: DataConfig, spec: SampleSpec) -> TrainingData:
    path = config.path
    mapped: tuple[MappedFile, ...] = ()
    if spec.kind != "fields":
        raise InputError(
            f"--data {path!r}: a language model of hf: or a recipe needs text or tokens: a folder, file or glob, or a "
            "saved data set with the column text or input_ids"
        )
    if is_reference(path):
        dataset = load_and_call("--data", path)
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InputError(f"--data {path} must have __len__ and __getitem__; got {type(dataset).__name__}")
        dataset = UserDataset(dataset, path)
        fingerprint = f"{len(dataset):,} samples of {path}"
    elif is_saved_dataset(path):
        dataset = open_saved_dataset(path).with_format("numpy")
        mapped = mapped_files(dataset)
        fingerprint = f"{len(dataset):,} samples of a saved data set ({dataset._fingerprint})"
    else:
        raise InputError(
            f"--data {path!r}: this model needs a data set of dictionaries: my.module:dataset, or a folder that "
            "datasets.Dataset.save_to_disk wrote"
        )
    return TrainingData(FieldSamples(dataset, path, mapped), f"{len(dataset):,} samples of {path}", fingerprint)


def _open_saved_tokens(config: DataConfig, spec: SampleSpec, cache_dir: Path) -> TrainingData:
    path = config.path
    dataset = open_saved_dataset(path)
    if TOKENS in dataset.column_names:
        if config.tokenizer is not None:
            raise InputError(f"--tokenizer is for text; --data {path!r} has the column {TOKENS} already")
        return _tokens(
            token_arrays(path, dataset), f"{len(dataset):,} rows of {path}", short_digest(dataset._fingerprint), spec
        )
    if TEXT not in dataset.column_names:
        raise InputError(
            f"--data {path!r} must have the column {TEXT} or {TOKENS}; it has {', '.join(dataset.column_names)}"
        )
    encoder = _encoder(config, spec)
    source = text_source(path, dataset, encoder)
    # The fingerprint is a value in a file of the folder; the text of another folder may have the same.
    place, listing = Path(path).expanduser().absolute(), listing_digest([file.path for file in mapped_files(dataset)])
    identity = short_digest(f"dataset {place} {dataset._fingerprint} {len(dataset)} {listing}")
    return _text(cached_corpus(path, [source], identity, cache_dir, encoder), path, spec)


def _encoder(config: DataConfig, spec: SampleSpec) -> Encoder:
    """The tokenizer, or bytes. Raises InputError if the model's vocabulary is smaller."""
    encoder = ByteEncoder() if config.tokenizer is None else TokenizerEncoder(config.tokenizer)
    if spec.vocab_size is not None and spec.vocab_size < encoder.vocab_size:
        of = "bytes" if config.tokenizer is None else f"--tokenizer {config.tokenizer}"
        raise InputError(
            f"--vocab_size must be at least {encoder.vocab_size}, the tokens of {of}; the model has {spec.vocab_size}"
        )
    return encoder


def _text(corpus: Corpus, path: str, spec: SampleSpec) -> TrainingData:
    unit = "bytes of text" if corpus.dtype == "uint8" else "tokens of text"
    samples = _token_samples([corpus.open()], spec, unit)
    return TrainingData(
        samples,
        f"{corpus.tokens:,} {unit.split()[0]} in {corpus.files:,} files of {path}",
        f"{corpus.tokens:,} {unit} ({corpus.digest[:12]})",
        corpus.skipped,
    )


def _tokens(arrays: Sequence[TokenArray], of: str, digest: str, spec: SampleSpec) -> TrainingData:
    count = sum(len(array.tokens) for array in arrays)
    samples = _token_samples(arrays, spec, "tokens")
    return TrainingData(samples, f"{count:,} tokens in {of}", f"{count:,} tokens ({digest[:12]})")


def _token_samples(arrays: Sequence[TokenArray], spec: SampleSpec, unit: str) -> TokenSamples:
    return TokenSamples(
        arrays,
        spec.seq_len,
        overlap=spec.kind == "next_token",
        weight=spec.weight,
        vocab_size=spec.vocab_size,
        unit=unit,
    )
