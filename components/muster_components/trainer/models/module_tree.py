"""What can be found out about any module: its repeated blocks, and which tensors are tied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


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


def _owners(module: nn.Module, recurse: bool) -> Iterable[nn.Module]:
    return module.modules() if recurse else (module,)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
