"""What can be found out about any module: its repeated blocks, its tensors, and which are tied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

ReadPart = Callable[[tuple[slice, ...]], Tensor]
"""Reads a part of a tensor, given one slice for each dimension."""


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """The children of every outermost nn.ModuleList or nn.Sequential whose children are all of one class.

    A model with two towers has blocks in both. Lists without parameters are not blocks.
    """
    children = list(module.children())
    one_class = len({type(child) for child in children}) == 1
    if isinstance(module, nn.ModuleList | nn.Sequential) and one_class and _has_parameters(children[0]):
        return children
    return [block for child in children for block in repeated_blocks(child)]


def allocate(modules: Sequence[nn.Module], device: torch.device, *, recurse: bool = False) -> None:
    """Move modules to `device` without values, as nn.Module.to_empty does, and keep tied parameters tied.

    `to_empty` makes a parameter of its own for each name; FSDP's sharded parameters stay tied.
    """
    places: defaultdict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in {id(owner): owner for module in modules for owner in _owners(module, recurse)}.values():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places[id(parameter)].append((owner, name))
    for module in modules:
        module.to_empty(device=device, recurse=recurse)
    for (first, first_name), *others in places.values():
        for owner, name in others:
            setattr(owner, name, getattr(first, first_name))


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of the module itself, by name."""
    return dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name; tied ones under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in persistent:
            yield name, buffer


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The attributes of the module itself that are tensors, but neither parameters nor buffers."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}


def unique_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """As named_tensors; tied ones under the first of their names."""
    seen = set()
    for name, tensor in named_tensors(module):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Of a DTensor all shards, on each of its ranks. Every one of them calls this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_part(target: Tensor, read: ReadPart) -> None:
    """Fill `target`, of a DTensor this rank's shard, with what `read` returns for its place in the whole tensor."""
    if not isinstance(target, DTensor):
        target.copy_(read(tuple(slice(0, size) for size in target.shape)))
        return
    local = target.to_local()
    for chunk in target.__create_chunk_list__():  # type: ignore[no-untyped-call]
        if local.numel():
            read_part = tuple(
                slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            local.copy_(read(read_part))


def _owners(module: nn.Module, recurse: bool) -> Iterable[nn.Module]:
    return module.modules() if recurse else (module,)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
