"""Names and initial weights of Transformers' models.

Transformers stores some tensors under other names, or in other pieces, than the model has them (experts one by one).
Its own table says how; here it becomes a NamePlan, so that weights can be streamed into shards.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from muster_components.trainer.models.module_tree import allocate, copy_part, own_tensors
from muster_components.trainer.models.safetensors_files import Conversion, NamePlan, SafetensorsFolder

_STALE_BUFFERS = (r"rotary_emb\.inv_freq$", r"position_ids$", r"attn\.(masked_)?bias$")
"""Saved by earlier versions of Transformers; models compute them."""


def name_plan(model: Any, source: SafetensorsFolder) -> NamePlan:
    """Which tensors of `source` make which of `model`, as `from_pretrained` of Transformers has it.

    `model`: the whole model, which may be on the meta device. A base model's weights open in a model with a head, with
    or without the prefix of the base model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known = model.state_dict()
    names: dict[str, str] = {}
    grouped: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in sorted(source.shapes, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], model.base_model_prefix, known)
        if target in known and pattern is not None:
            grouped[target].append((name, pattern))
        else:
            names[name] = target
    patterns = [*_STALE_BUFFERS, *(model._keys_to_ignore_on_load_unexpected or ())]
    ignored = {name for name, target in names.items() if target not in known and _matches(name, patterns)}
    return NamePlan(
        {name: target for name, target in names.items() if name not in ignored},
        tuple(_conversion(model, by_pattern, target, sources) for target, sources in grouped.items()),
        frozenset(ignored),
    )


def _conversion(
    model: Any, by_pattern: Mapping[str, Any], target: str, sources: Sequence[tuple[str, str]]
) -> Conversion:
    converter = by_pattern[sources[0][1]]
    first, *rest = converter.target_patterns

    def run(read: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        once = copy.deepcopy(converter)  # it collects what it converts
        for name, pattern in sources:
            once.add_tensor(target, name, pattern, read[name])
        made = once.convert(target, model=model, config=model.config)
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}

    targets = (target, *(target.replace(first, other) for other in rest))
    return Conversion(tuple(name for name, _ in sources), targets, run)


@torch.no_grad()
def init_from_reference(module: nn.Module, reference: Any, blocks: Sequence[nn.Module], seed: int) -> None:
    """Set the weights and buffers of `module`, or of a part of the model, to those that Transformers initializes.

    `reference`: the whole model on the meta device; `blocks`: its repeated blocks. One block at a time is initialized
    as a whole, with random numbers that depend on the seed and its name, and this rank's shards are kept: so the
    weights are the same for any number of ranks.
    """
    inside = {id(child) for block in blocks for child in block.modules()}
    rest = [child for child in reference.modules() if id(child) not in inside]
    for unit in ([*block.modules()] for block in blocks):
        _init_unit(module, reference, unit, seed)
    _init_unit(module, reference, rest, seed)


@torch.no_grad()
def init_buffers_from_reference(module: nn.Module, reference: Any) -> None:
    """Set the buffers that are not saved, such as rotary frequencies, to those that Transformers computes."""
    for child in reference.modules():
        if child._non_persistent_buffers_set:
            _init_unit(module, reference, [child], seed=0, names_of=lambda child: child._non_persistent_buffers_set)


def _init_unit(
    module: nn.Module,
    reference: Any,
    unit: Sequence[nn.Module],
    seed: int,
    names_of: Callable[[nn.Module], Iterable[str]] = own_tensors,
) -> None:
    """Initialize the modules `unit` of `reference`, copy what `module` has of their `names_of`, and free them again."""
    from transformers import PreTrainedModel

    targets = dict(module.named_parameters()) | dict(module.named_buffers())
    names = {id(child): name for name, child in reference.named_modules()}
    own = {f"{names[id(child)]}.{name}".lstrip("."): (child, name) for child in unit for name in names_of(child)}
    wanted = [name for name in own if name in targets]
    if not wanted:
        return
    device = targets[wanted[0]].device
    models = {name: child for name, child in reference.named_modules() if isinstance(child, PreTrainedModel)}
    allocate(unit, device)
    number = hashlib.sha256(f"{seed}:{names[id(unit[0])]}".encode()).digest()[:7]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(number, "big"))
        for child in reversed(unit):  # children before parents, whose rules may change those of their children
            path = names[id(child)]
            models[max((name for name in models if _contains(name, path)), key=len)]._init_weights(child)
    for name in wanted:
        child, own_name = own[name]
        copy_part(targets[name], getattr(child, own_name).__getitem__)
    for child in unit:
        child.to_empty(device=torch.device("meta"), recurse=False)


def _contains(outer: str, path: str) -> bool:
    return outer == "" or path == outer or path.startswith(f"{outer}.")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
