"""Text to tokens: bytes, or the tokens of a local tokenizer file."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from muster_components.trainer.errors import InputError, install_extra
from muster_components.trainer.regular_files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_TOKENS: Final = 256
_TEXT_CHARACTERS: Final = 1024**2
_MAX_CONFIG_BYTES: Final = 64 << 20
# Tokenizers split text before they merge, and none of them joins a line end with the word on the next line.
_LINE_STARTS = re.compile(r"(?<=\n)(?=\S)")


class Encoder(Protocol):
    """Encodes the text of one file after the other."""

    @property
    def identity(self) -> str:
        """A part of the cache's key: encoders that make other tokens have another."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a token in the cache."""
        ...

    @property
    def separator(self) -> bytes:
        """What follows each file or row, as stored."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens are less than this."""
        ...

    def encode(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The stored tokens of one text in UTF-8."""
        ...


class ByteEncoder:
    """A token is a byte; byte 0 separates texts."""

    identity = "bytes"
    dtype = np.dtype(np.uint8)
    separator = b"\0"
    vocab_size = BYTE_TOKENS

    def encode(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Unchanged."""
        yield from chunks


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What objectives need of a tokenizer: its mask token, and the sentinels of T5, in their order."""

    mask: int | None = None
    sentinels: tuple[int, ...] = ()


class TokenizerEncoder:
    """A tokenizer of the library `tokenizers`; its end-of-text token, if it is known, separates texts."""

    def __init__(self, path: str) -> None:
        """`path`: a tokenizer.json, or a folder that contains one. Raises InputError."""
        given = Path(path).expanduser()
        self._path = given / "tokenizer.json" if given.is_dir() else given
        self._tokenizer = _open(self._path, path)
        special = _special_tokens(self._path.with_name("tokenizer_config.json"))
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)
        self.special_tokens = SpecialTokens(self._token(special.get("mask_token")), self._sentinels())
        end = self._token(special.get("eos_token", special.get("sep_token")))
        self.separator = b"" if end is None else np.array([end], self.dtype).tobytes()
        self.identity = f"{hashlib.sha256(self._path.read_bytes()).hexdigest()} {self.separator.hex()}"

    def encode(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """In pieces of about a million characters, which end with a line where they can."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        pending = ""
        for chunk in chunks:
            pending += decoder.decode(chunk)
            while len(pending) > 2 * _TEXT_CHARACTERS:
                end = _line_start(pending, _TEXT_CHARACTERS)
                yield self._encode(pending[:end])
                pending = pending[end:]
        yield self._encode(pending + decoder.decode(b"", final=True))

    def _encode(self, text: str) -> bytes:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, self.dtype).tobytes()

    def _sentinels(self) -> tuple[int, ...]:
        """`<extra_id_0>`, `<extra_id_1>` and so on, as T5's tokenizers name them."""
        found: list[int] = []
        while (token := self._tokenizer.token_to_id(f"<extra_id_{len(found)}>")) is not None:
            found.append(token)
        return tuple(found)

    def _token(self, text: str | None) -> int | None:
        return None if text is None else self._tokenizer.token_to_id(text)


def _line_start(text: str, after: int) -> int:
    """The first start of a line after `after`, or `after` if there is none."""
    found = _LINE_STARTS.search(text, after)
    return after if found is None else found.start()


def _open(path: Path, given: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(f"--tokenizer needs the library tokenizers; {install_extra('hf')} ({error})") from error
    if not path.is_file():
        raise InputError(f"--tokenizer {given!r} must be a tokenizer.json or a folder that contains one; no {path}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"--tokenizer {path} cannot be read: {error}") from error


def _special_tokens(path: Path) -> dict[str, str]:
    """The texts of eos_token, sep_token and mask_token in tokenizer_config.json, as far as it has them."""
    try:
        config = read_json(path, _MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} must contain a JSON object; got {type(config).__name__}")
    texts = {}
    for name in ("eos_token", "sep_token", "mask_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts
