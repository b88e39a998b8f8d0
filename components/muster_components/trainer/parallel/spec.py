"""`--parallel`: how the ranks divide the work. Imports no torch, so that it can be checked before a pod starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from muster_components.trainer.errors import InputError

DataParallelism = Literal["fsdp", "hsdp", "ddp"]

_FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {"fsdp": "fsdp or fsdp=N", "hsdp": "hsdp=RxS", "ddp": "ddp or ddp=N", "tp": "tp=N", "pp": "pp=N"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """The number of ranks in each dimension of the mesh; neighbouring ranks differ in the last one, `tp`.

    The ranks of `tp` and of `pp` hold parts of one replica of the model. `shard` ranks share its weights and optimizer
    state (FSDP2), and there are `replicate` copies of them.
    """

    data: DataParallelism = "fsdp"
    pp: int = 1
    replicate: int = 1
    shard: int = 1
    tp: int = 1

    @property
    def data_ranks(self) -> int:
        """Ranks with different samples."""
        return self.replicate * self.shard

    @property
    def world_size(self) -> int:
        return self.pp * self.replicate * self.shard * self.tp

    def __str__(self) -> str:
        """As in `--parallel`: `tp=2,fsdp=4`; empty for one rank."""
        sizes = [f"{name}={size}" for name, size in (("pp", self.pp), ("tp", self.tp)) if size > 1]
        if self.data == "hsdp":
            sizes.append(f"hsdp={self.replicate}x{self.shard}")
        elif self.data_ranks > 1:
            sizes.append(f"{self.data}={self.data_ranks}")
        return ",".join(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """The value of `--parallel`. `data_ranks` None: all ranks that `pp` and `tp` leave; `replicate` is for hsdp."""

    data: DataParallelism = "fsdp"
    data_ranks: int | None = None
    replicate: int = 1
    tp: int = 1
    pp: int = 1

    def shape(self, world_size: int) -> MeshShape:
        """The mesh of `world_size` ranks. Raises InputError if they do not fit."""
        model_ranks = self.tp * self.pp
        if self.data_ranks is None and world_size % model_ranks:
            raise InputError(f"--parallel {self} needs a multiple of {model_ranks} ranks; got {world_size}")
        data_ranks = self.data_ranks or world_size // model_ranks
        if data_ranks * model_ranks != world_size:
            raise InputError(f"--parallel {self} needs {data_ranks * model_ranks} ranks; got {world_size}")
        replicate = data_ranks if self.data == "ddp" else self.replicate
        return MeshShape(data=self.data, pp=self.pp, replicate=replicate, shard=data_ranks // replicate, tp=self.tp)

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name, size in (("pp", self.pp), ("tp", self.tp)) if size > 1]
        if self.data == "hsdp":
            sizes.append(f"hsdp={self.replicate}x{(self.data_ranks or 0) // self.replicate}")
        else:
            sizes.append(self.data if self.data_ranks is None else f"{self.data}={self.data_ranks}")
        return ",".join(sizes)


def parse_parallel(text: str) -> ParallelSpec:
    """Parse `fsdp`, `ddp=4`, `hsdp=2x4`, `tp=2,fsdp` and so on. Raises InputError."""
    sizes: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        pattern = r"(\d{1,18})x(\d{1,18})" if name == "hsdp" else r"(\d{1,18})"
        match = re.fullmatch(pattern, number)
        without_number = not equals and name in ("fsdp", "ddp")
        if name not in _FORMS or not (match or without_number):
            valid = _FORMS.get(name) or ", ".join(_FORMS.values())
            raise InputError(f"--parallel must be a list of {valid}; got {part.strip()!r}")
        if name in sizes:
            raise InputError(f"--parallel must name {name} once; got {text!r}")
        sizes[name] = tuple(map(int, match.groups())) if match else ()
        if 0 in sizes[name]:
            raise InputError(f"--parallel sizes must be at least 1; got {part.strip()!r}")
    kinds: list[DataParallelism] = [kind for kind in ("fsdp", "hsdp", "ddp") if kind in sizes]
    if len(kinds) > 1:
        raise InputError(f"--parallel must name one of fsdp, hsdp and ddp; got {text!r}")
    data = kinds[0] if kinds else "fsdp"
    data_sizes = sizes.get(data, ())
    return ParallelSpec(
        data=data,
        data_ranks=data_sizes[0] * data_sizes[-1] if len(data_sizes) == 2 else data_sizes[0] if data_sizes else None,
        replicate=data_sizes[0] if data == "hsdp" else 1,
        tp=sizes.get("tp", (1,))[0],
        pp=sizes.get("pp", (1,))[0],
    )
