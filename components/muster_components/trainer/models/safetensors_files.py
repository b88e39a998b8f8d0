"""Weights of a local Hugging Face folder, streamed into a model, sharded or not.

Every rank reads the headers of the files, checks all names and shapes before the first weight is read, and then reads
of each tensor only the rows and columns that it stores. At most one tensor is in memory beside the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from muster_components.trainer.checkpoint_manifest import is_file_name
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.module_tree import ReadPart, copy_part, named_tensors, unique_tensors
from muster_components.trainer.regular_files import open_regular, read_json

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_SHOWN_NAMES: Final = 3
_MAX_INDEX_BYTES: Final = 256 << 20  # about 100 bytes per tensor


@dataclass(frozen=True, slots=True)
class Conversion:
    """Tensors of the model that are computed from whole tensors of the files, such as experts stored one by one.

    `run` maps the tensors of `sources` by name to those of `targets` by name.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    run: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class NamePlan:
    """Which tensors of the files make which of the model. `names`: each name in the files to the name in the model."""

    names: Mapping[str, str]
    conversions: tuple[Conversion, ...] = ()
    ignored: frozenset[str] = frozenset()
    """Names in the files that the model does not need."""


class SafetensorsFolder:
    """The tensors in `model.safetensors`, or in the files that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path) -> None:
        """Read the index and all headers. Raises InputError if a file is missing or damaged, or lacks a tensor."""
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        listed = _read_index(folder)
        for file in sorted({folder / WEIGHTS} if listed is None else {folder / name for name in listed.values()}):
            with _open(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                    self._file_of[name] = file
                    self.shapes[name] = tuple(tensors.get_slice(name).get_shape())
        for name, file_name in (listed or {}).items():
            if self._file_of.get(name) != folder / file_name:
                raise InputError(f"{folder / file_name} has no tensor {name!r}, which {INDEX} lists there")

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, ReadPart]]:
        """The tensors of `names`, file by file with one file open; each is valid until the next is asked for."""
        by_file: defaultdict[Path, list[str]] = defaultdict(list)
        for name in names:
            by_file[self._file_of[name]].append(name)
        for file in sorted(by_file):
            with _open(file) as tensors:
                for name in by_file[file]:
                    yield name, tensors.get_slice(name).__getitem__


@torch.no_grad()
def load_weights(
    module: nn.Module, source: SafetensorsFolder, *, plan: NamePlan | None = None, whole: nn.Module | None = None
) -> None:
    """Copy tensors of `source` to the parameters and persistent buffers of `module`, of DTensors this rank's shard.

    `plan`: default: the names in files and model are the same. `whole`: the unsplit model, which may be on the meta
    device, if `module` is a part of it that keeps its names. Values are cast to the type of the parameter. The files
    may have any of the names of tied parameters. Raises InputError with the names that are missing, unexpected or of
    another shape, before anything is read.
    """
    plan = plan or NamePlan({name: name for name in source.shapes})
    aliases = _aliases(whole or module)
    file_names = _match_names(aliases, dict(named_tensors(whole or module)), source, plan)
    targets = {}  # by name in the files
    converted = {}  # by name in the model
    for name, tensor in unique_tensors(module):
        if name in file_names:
            targets[file_names[name]] = tensor
        else:
            converted.update(dict.fromkeys(aliases[name], tensor))
    for file_name, read in source.read(targets):
        copy_part(targets[file_name], read)
    for conversion in plan.conversions:
        if not converted.keys().isdisjoint(conversion.targets):
            _convert(conversion, source, converted)


def _aliases(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """All names of the tensor that a name belongs to."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, tensor in named_tensors(module):
        names[id(tensor)].append(name)
    return {name: tuple(group) for group in names.values() for name in group}


def _match_names(
    aliases: Mapping[str, tuple[str, ...]], tensors: Mapping[str, Tensor], source: SafetensorsFolder, plan: NamePlan
) -> dict[str, str]:
    """The name in the files of each of the model's tensors that needs no conversion. Raises InputError."""
    file_names: dict[str, str] = {}
    wrong_shapes = []
    unexpected = source.shapes.keys() - plan.names.keys() - plan.ignored
    for conversion in plan.conversions:
        unexpected -= set(conversion.sources)
    for file_name, name in plan.names.items():
        if name not in tensors:
            unexpected.add(file_name)
        elif source.shapes[file_name] != tuple(tensors[name].shape):
            wrong_shapes.append(f"{file_name} {source.shapes[file_name]} instead of {tuple(tensors[name].shape)}")
        else:
            for alias in aliases[name]:
                file_names.setdefault(alias, file_name)
    converted = {alias for one in plan.conversions for name in one.targets for alias in aliases.get(name, ())}
    missing = [names[0] for names in dict.fromkeys(aliases.values()) if not {*file_names, *converted} & {*names}]
    problems = [
        f"{what}: {', '.join(found[:_SHOWN_NAMES])}"
        + (f" and {len(found) - _SHOWN_NAMES} more" if len(found) > _SHOWN_NAMES else "")
        for what, found in (
            ("missing", missing),
            ("of another shape", sorted(wrong_shapes)),
            ("not in the model", sorted(unexpected)),
        )
        if found
    ]
    if problems:
        raise InputError(f"the tensors of {source.folder} do not match the model; {'; '.join(problems)}")
    return file_names


def _convert(conversion: Conversion, source: SafetensorsFolder, targets: Mapping[str, Tensor]) -> None:
    everything = (slice(None),)
    read = {
        name: part(everything) if source.shapes[name] else part(()) for name, part in source.read(conversion.sources)
    }
    for name, tensor in conversion.run(read).items():
        if name not in targets:
            continue
        if tensor.shape != targets[name].shape:
            raise InputError(
                f"{source.folder}: {', '.join(conversion.sources[:_SHOWN_NAMES])} make {name} of shape "
                f"{tuple(tensor.shape)}; it must be {tuple(targets[name].shape)}"
            )
        copy_part(targets[name], tensor.__getitem__)


def _read_index(folder: Path) -> dict[str, str] | None:
    """The files by tensor, or None without an index."""
    try:
        weight_map: Any = read_json(folder / INDEX, _MAX_INDEX_BYTES)["weight_map"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / INDEX} cannot be read: {type(error).__name__}: {error}") from error
    valid = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    if not valid or not all(is_file_name(name) for name in weight_map.values()):
        raise InputError(f"{folder / INDEX}: weight_map must give each tensor the name of a file in the same folder")
    return weight_map  # type: ignore[no-any-return]


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        open_regular(file).close()  # safe_open would block for a FIFO
        with safe_open(file, framework="pt", device="cpu") as tensors:
            yield tensors
    except FileNotFoundError as error:
        raise InputError(f"{file} does not exist") from error
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: a name that no file can have
        raise InputError(f"{file} cannot be read: {error}") from error
