"""Which modules an unmodified model calls, in which order, and which results each call uses.

A pipeline stage runs the model's own forward with a part of its modules. To know which part, and what the stages before
it must send, the forward is recorded once, without weights:

- the repeated blocks and the modules around them (embeddings, norms, head) run on the meta device, which gives shapes
  and floating-point operations but no values;
- everything between these calls runs on real tensors, since masks and position ids may decide control flow;
- autograd determines which earlier results each call uses: each result is a new leaf of the autograd graph.

The model is neither exported nor traced symbolically, which fails for many models with rotary embeddings.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.module_tree import plain_tensors


@dataclass(frozen=True, slots=True, order=True)
class Result:
    """One tensor that a call returned: the position of the call, and the position in its flattened output."""

    call: int
    leaf: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module. `occurrence` counts the calls of the same module; `flops` are those of a forward.

    `output` is what the module returned, with its tensors on the meta device.
    """

    module: str
    occurrence: int
    is_block: bool
    flops: int
    output: object
    uses: frozenset[Result]


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The calls of one forward in their order. `output_uses`: what the model's output is made of."""

    calls: tuple[Call, ...]
    output_uses: frozenset[Result]

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(position for position, call in enumerate(self.calls) if call.is_block)

    def block_costs(self) -> list[int]:
        """Floating-point operations of each block, in order of execution, for a balanced split.

        What is called before the first block counts to that block; anything else outside of blocks counts to the
        block before it. So embeddings and head are included.
        """
        blocks = self.blocks
        starts = [0, *blocks[1:]]
        ends = [*blocks[1:], len(self.calls)]
        return [sum(call.flops for call in self.calls[start:end]) for start, end in zip(starts, ends, strict=True)]

    def split_sequences(self, ranks: int) -> CallGraph:
        """With outputs (..., L, D) of a part of each sequence, as between tensor-parallel modules of `ranks` ranks."""

        def part(tensor: Tensor) -> Tensor:
            if tensor.dim() < 2:
                return tensor
            shape = (*tensor.shape[:-2], tensor.shape[-2] // ranks, tensor.shape[-1])
            return torch.empty(shape, dtype=tensor.dtype, device="meta")

        calls = (
            dataclasses.replace(call, output=pytree.tree_map_only(Tensor, part, call.output)) for call in self.calls
        )
        return CallGraph(tuple(calls), self.output_uses)


def find_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """The repeated blocks of a model, or of a stage of it, by their names, in order of registration.

    Blocks are the entries of each outermost ModuleList or Sequential that has two entries or more, all of one class,
    with parameters and submodules. An encoder-decoder model has two such lists.

    Raises InputError if there is none.
    """
    blocks = {
        f"{name}.{entry}": block
        for name, found in _block_lists(module, "")
        for entry, block in found.named_children()
        if not isinstance(block, Placeholder)
    }
    if not blocks:
        raise InputError(
            f"--model: {type(module).__name__} has no repeated blocks: a ModuleList or Sequential of at least two"
            " modules of one class, each with parameters and submodules"
        )
    return blocks


def _block_lists(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        full_name = f"{prefix}{name}"
        if _is_block_list(child):
            yield full_name, child
        else:
            yield from _block_lists(child, f"{full_name}.")


def _is_block_list(module: nn.Module) -> bool:
    """In a stage, placeholders stand for the blocks of other stages."""
    blocks = [entry for entry in module.children() if not isinstance(entry, Placeholder)]
    return (
        isinstance(module, nn.ModuleList | nn.Sequential)
        and len(module) >= 2
        and len({type(block) for block in blocks}) == 1
        and all(_has_parameters(block) and any(True for _ in block.children()) for block in blocks)
    )


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


@dataclass(frozen=True, slots=True)
class ModuleRoles:
    """The modules that a forward is divided into.

    `blocks`, and `around`: the modules with parameters outside of blocks. `plain` have no parameters (dropout, rotary
    embeddings) and run on every stage. Modules that contain blocks are in none of them: their forward runs as it is.
    """

    blocks: dict[str, nn.Module]
    around: dict[str, nn.Module]
    plain: dict[str, nn.Module]


def module_roles(module: nn.Module) -> ModuleRoles:
    """Divide a model's modules. A module that is registered twice is found by its first name. Raises InputError."""
    roles = ModuleRoles(find_blocks(module), {}, {})
    seen = {id(block) for block in roles.blocks.values()}

    def visit(parent: nn.Module, prefix: str) -> None:
        for name, child in parent.named_children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            inside = f"{prefix}{name}"
            # A container without a forward of its own, such as a ModuleDict, is never called itself.
            container = type(child).forward is nn.Module.forward
            if container or any(block.startswith(f"{inside}.") for block in roles.blocks):
                visit(child, f"{inside}.")
            elif _has_parameters(child):
                roles.around[inside] = child
            else:
                roles.plain[inside] = child

    visit(module, "")
    return roles


def record_calls(module: nn.Module, batch: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> CallGraph:
    """Record one forward of `module(**batch)`, on the device of `batch`; use a CPU.

    `module` may be on the meta device; it is not changed. `batch` has the shapes of one micro-batch of training.
    `dtype`: that of the parameters during forward, if it is not that of the stored ones (mixed precision).

    Raises InputError if the model has no repeated blocks, calls a block twice or never, or returns something from a
    block that cannot be sent.
    """
    recorder = _Recorder(next(tensor.device for tensor in batch.values()))
    model = recorder.copy(module, dtype)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        output = model(**batch)
    graph = CallGraph(tuple(recorder.calls), frozenset(recorder.uses(output)))
    called = [graph.calls[position].module for position in graph.blocks]
    if sorted(called) != sorted(recorder.block_names):
        wrong = sorted(name for name in recorder.block_names if called.count(name) != 1)
        raise InputError(
            f"--model: a pipeline needs blocks that forward calls exactly once; this is not so for {wrong}"
        )
    return graph


class _Recorder:
    """Records the calls of one forward."""

    def __init__(self, device: torch.device) -> None:
        self.calls: list[Call] = []
        self.block_names: list[str] = []
        self._device = device
        self._results: dict[int, Result] = {}
        self._leaves: list[Tensor] = []  # kept, so that their ids stay unique
        self._counts: dict[str, int] = {}
        self._returns_results: dict[str, bool] = {}

    def copy(self, module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        """A copy of the model whose blocks and modules with parameters are `_Recorded`."""
        roles = module_roles(module)
        self.block_names = list(roles.blocks)
        memo: dict[int, Any] = {}
        for name, original in (roles.blocks | roles.around).items():
            memo[id(original)] = _Recorded(self, name, on_meta(original, dtype), is_block=name in roles.blocks)
        # What is left of the weights is small: what modules that contain blocks own directly, and tables of buffers.
        for tensor in _tensors_outside(module, set(memo)):
            memo[id(tensor)] = _values(tensor, self._device)
        model = copy.deepcopy(module, memo)
        for name in roles.plain:
            model.get_submodule(name).register_forward_hook(self._plain_hook(name))
        return model

    def record(self, name: str, *, is_block: bool, flops: int, output: object, uses: set[Result]) -> object:
        """Add a call; returns its output with new leaves of the autograd graph instead of the meta tensors."""
        position, occurrence = len(self.calls), self._counts.get(name, 0)
        self._counts[name] = occurrence + 1
        leaves, spec = pytree.tree_flatten(output)
        for leaf in leaves:
            check_leaf(name, leaf)
        meta = pytree.tree_map_only(
            Tensor, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), output
        )
        self.calls.append(Call(name, occurrence, is_block, flops, meta, frozenset(uses)))
        values = [
            self._new_leaf(leaf, Result(position, index)) if isinstance(leaf, Tensor) else leaf
            for index, leaf in enumerate(leaves)
        ]
        return pytree.tree_unflatten(values, spec)

    def uses(self, tree: object) -> set[Result]:
        """The results that the tensors of `tree` were computed from, with anything in between."""
        pending = [t.grad_fn for t in pytree.tree_leaves(tree) if isinstance(t, Tensor) and t.grad_fn is not None]
        seen = set(pending)
        found = set()
        while pending:
            node = pending.pop()
            if (result := self._results.get(id(getattr(node, "variable", None)))) is not None:
                found.add(result)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    pending.append(following)
        return found

    def _new_leaf(self, like: Tensor, result: Result) -> Tensor:
        zeros = torch.zeros(like.shape, dtype=like.dtype, device=self._device)
        leaf = torch.zeros((), dtype=like.dtype, device=self._device, requires_grad=True)
        self._results[id(leaf)] = result
        self._leaves.append(leaf)
        return zeros + leaf  # no leaf itself, so that the model may change it in place

    def _plain_hook(self, name: str) -> Any:
        def hook(_module: nn.Module, _arguments: object, output: object) -> object:
            """Dropout of a result is a result of its own: another stage would draw other values."""
            uses = self.uses(output)
            if self._returns_results.setdefault(name, bool(uses)) != bool(uses):
                raise InputError(f"--model: {name} is called both with and without hidden states; use two modules")
            if not uses:
                return None
            return self.record(name, is_block=False, flops=0, output=output, uses=uses)

        return hook


class Placeholder(nn.Module):
    """Takes the place of a module, `original`, which is on the meta device; it has no parameters.

    Anything else that the model reads of it, such as `weight.dtype`, is that of the original.
    """

    def __init__(self, name: str, original: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(name=name, original=original)  # not as a submodule

    def __getattr__(self, name: str) -> Any:
        if "original" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["original"], name)


class _Recorded(Placeholder):
    """Runs the original, and records the call."""

    def __init__(self, recorder: _Recorder, name: str, original: nn.Module, *, is_block: bool) -> None:
        super().__init__(name, original)
        self.recorder = recorder
        self.is_block = is_block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        uses = self.recorder.uses((args, kwargs))
        output, flops = self._run_on_meta(args, kwargs)
        return self.recorder.record(self.name, is_block=self.is_block, flops=flops, output=output, uses=uses)

    def _run_on_meta(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, int]:
        """What the module returns, and its floating-point operations.

        A block with experts cannot run without values. Then it is taken to return what its first argument is, as blocks
        do, and to use each parameter once for each row of it; stages verify what blocks return.
        """
        args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.detach().to("meta"), (args, kwargs))
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                return self.original(*args, **kwargs), counter.get_total_flops()
        except RuntimeError as error:
            hidden = next((t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)), None)
            if not self.is_block or hidden is None or not hidden.is_floating_point():
                raise InputError(
                    f"--model: {self.name} cannot run without values, on the meta device: {error}"
                ) from error
            rows = hidden.numel() // hidden.shape[-1]
            return hidden, 2 * rows * sum(parameter.numel() for parameter in self.original.parameters())


def on_meta(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of the module on the meta device; its floating-point parameters have `dtype` if one is given."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        cast = dtype is not None and isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        memo[id(tensor)] = _like(tensor, torch.empty_like(tensor, dtype=dtype if cast else None, device="meta"))
    return copy.deepcopy(module, memo)


def check_leaf(name: str, leaf: object) -> None:
    """Raises InputError for a value that another stage can neither receive nor compute itself."""
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return
    kind = f"a tensor of {leaf.dtype}" if isinstance(leaf, Tensor) else f"an object of {type(leaf).__name__}"
    raise InputError(f"--model: {name} returns {kind}; in a pipeline, modules return floating-point tensors only")


def _tensors_outside(module: nn.Module, replaced: Collection[int]) -> Iterator[Tensor]:
    """Parameters, buffers and other tensors of the modules whose ids are not in `replaced`."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    yield from plain_tensors(module).values()
    for child in module.children():
        if id(child) not in replaced:
            yield from _tensors_outside(child, replaced)


def _values(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor itself, or zeros for one on the meta device."""
    if tensor.device == device:
        return tensor
    return _like(tensor, torch.zeros(tensor.shape, dtype=tensor.dtype, device=device))


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
