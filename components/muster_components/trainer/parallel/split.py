"""Pipeline stages of an unmodified model.

A stage is a copy of the model that holds its own blocks, and of the modules around them (embeddings, norms, head) those
that its part of the forward calls. The other modules are replaced by placeholders without parameters; every parameter
keeps its name. A stage runs the model's own forward, so it computes masks, position ids and rotary embeddings itself
from the inputs of the micro-batch, which every stage is given:

- a placeholder called before the stage's part returns what the stage received from the stage before, or zeros where
  nothing that follows uses the result;
- the first placeholder called after the stage's part ends the forward.

What a stage sends is what later calls use, by the recorded calls: mostly the hidden states, in an encoder-decoder model
also the encoder's output. There is no case for a single family of models.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from muster_components.trainer.errors import InputError, TrainerError
from muster_components.trainer.parallel.call_graph import CallGraph, Placeholder, Result, module_roles, on_meta

FinishForward = Callable[[Any, dict[str, Tensor]], Tensor]
"""The loss from the model's output and the micro-batch."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage's part of the forward: the calls from `start` to before `end`."""

    index: int
    stages: int
    start: int
    end: int
    receives: tuple[Result, ...]
    sends: tuple[Result, ...]

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that several stages use, as tied embeddings: its name in the unsplit model, and its copies."""

    name: str
    copies: tuple[tuple[int, str], ...]
    """The index of a stage, and the parameter's name there."""


def plan_stages(graph: CallGraph, blocks_per_stage: Sequence[int]) -> tuple[StagePlan, ...]:
    """The stages that hold so many blocks each, in order of execution.

    Between two blocks of different stages, the model is cut where least has to be sent.

    Raises InputError unless every stage holds a block and the stages hold all blocks.
    """
    blocks, stages = graph.blocks, len(blocks_per_stage)
    if min(blocks_per_stage) < 1 or sum(blocks_per_stage) != len(blocks):
        raise InputError(
            f"stages of {list(blocks_per_stage)} blocks: each must have at least 1, all together {len(blocks)}"
        )
    ends = [
        min(
            range(blocks[count], blocks[count - 1], -1),
            key=lambda end: sum(_output(graph, result).numel() for result in _used_after(graph, end)),
        )
        for count in list(accumulate(blocks_per_stage))[:-1]
    ]
    bounds = [0, *ends, len(graph.calls)]
    # Nothing enters the first stage or leaves the last one.
    sent = [(), *(_used_after(graph, end) for end in ends), ()]
    return tuple(
        StagePlan(index, stages, bounds[index], bounds[index + 1], sent[index], sent[index + 1])
        for index in range(stages)
    )


def _used_after(graph: CallGraph, end: int) -> tuple[Result, ...]:
    """The results of calls before `end` that later calls or the model's output use."""
    used = graph.output_uses.union(*(call.uses for call in graph.calls[end:]))
    return tuple(sorted(result for result in used if result.call < end))


def _output(graph: CallGraph, result: Result) -> Tensor:
    """A result as a tensor on the meta device."""
    leaf = pytree.tree_leaves(graph.calls[result.call].output)[result.leaf]
    assert isinstance(leaf, Tensor)
    return leaf


def sent_tensors(graph: CallGraph, plan: StagePlan) -> tuple[Tensor, ...]:
    """Shapes and types of what a stage sends, as tensors on the meta device."""
    return tuple(_output(graph, result) for result in plan.sends)


def build_stage(
    module: nn.Module,
    graph: CallGraph,
    plan: StagePlan,
    finish: FinishForward | None = None,
    targets: Collection[str] = (),
) -> nn.Module:
    """A copy of the model for one stage, called as `stage(*received, **batch)`; only `finish` gets the `targets` of it.

    It returns a tuple of the tensors to send. The last stage returns the model's output, or what `finish` makes of
    output and batch. `module` is not changed, and may be on the meta device; the copy does not share its parameters.

    The stage may be sharded, compiled per block and moved before its first call.
    """
    calls: dict[str, list[int]] = {}
    for position, call in enumerate(graph.calls):
        calls.setdefault(call.module, []).append(position)
    run = _StageRun(graph, plan, calls)
    roles = module_roles(module)
    memo: dict[int, Any] = {}
    for name, original in (roles.blocks | roles.around | roles.plain).items():
        # A module that is never called has its parameters in one stage, for the checkpoint.
        positions = calls.get(name, [0] if name in roles.around else [plan.start])
        if not any(plan.start <= position < plan.end for position in positions):
            memo[id(original)] = _OtherStage(run, name, on_meta(original))
    stage = copy.deepcopy(module, memo)
    stage.forward = functools.partial(_forward, stage, run, finish, targets)
    return stage


def shared_parameters(module: nn.Module, stages: Sequence[nn.Module]) -> tuple[SharedParameter, ...]:
    """The parameters of the unsplit model that two stages or more have.

    Their gradients must be summed over the copies before the optimizer's step.
    """
    first_names: dict[int, str] = {}
    canonical = {
        name: first_names.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    copies: dict[str, list[tuple[int, str]]] = {}
    for index, stage in enumerate(stages):
        for name, _ in stage.named_parameters():
            copies.setdefault(canonical[name], []).append((index, name))
    return tuple(SharedParameter(name, tuple(found)) for name, found in copies.items() if len(found) > 1)


class _StageEnd(BaseException):
    """Ends the forward of a stage that is not the last one. No Exception, so that models do not catch it."""


@dataclass(slots=True)
class _StageRun:
    """What the modules of a stage share during one forward."""

    graph: CallGraph
    plan: StagePlan
    positions: dict[str, list[int]]
    """The positions of each module's calls."""
    device: torch.device = torch.device("cpu")
    tensors: dict[Result, Tensor] = field(default_factory=dict)
    """What was received, and what is to be sent."""
    counts: dict[str, int] = field(default_factory=dict)
    observing: bool = False
    active: bool = False

    def begin(self, received: Sequence[Tensor], device: torch.device) -> None:
        """Start a forward. Raises TrainerError if what was received is not what was recorded."""
        if len(received) != len(self.plan.receives):
            raise TrainerError(f"{self._name()} received {len(received)} tensors instead of {len(self.plan.receives)}")
        self.device, self.active = device, True
        self.counts.clear()
        # A view, since what is received may be sent on, and a leaf of the autograd graph cannot be a result.
        self.tensors = {
            result: tensor.view_as(tensor) for result, tensor in zip(self.plan.receives, received, strict=True)
        }

    def next_position(self, module: str) -> int:
        """The position of this call of a module. Raises TrainerError if it was not recorded."""
        count = self.counts.get(module, 0)
        self.counts[module] = count + 1
        if count >= len(self.positions.get(module, ())):
            raise TrainerError(f"{self._name()}: {module} is called more often than when the model was split")
        return self.positions[module][count]

    def stand_in(self, position: int) -> object:
        """The output of a call of another stage: what was received of it, zeros otherwise."""
        leaves, spec = pytree.tree_flatten(self.graph.calls[position].output)
        return pytree.tree_unflatten(
            [self._received_or_zeros(Result(position, index), leaf) for index, leaf in enumerate(leaves)], spec
        )

    def keep(self, position: int, output: object) -> None:
        """Keep what is to be sent of a call's output."""
        for index, leaf in enumerate(pytree.tree_leaves(output)):
            result = Result(position, index)
            if result in self.plan.sends:
                self.tensors[result] = leaf

    def end(self) -> tuple[Tensor, ...]:
        """What is to be sent. Raises TrainerError if it is not what was recorded."""
        tensors, self.tensors, self.active = self.tensors, {}, False
        for result in self.plan.sends:
            expected, found = _output(self.graph, result), tensors.get(result)
            if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
                got = "nothing" if found is None else f"{found.dtype} {tuple(found.shape)}"
                raise TrainerError(
                    f"{self._name()}: {self.graph.calls[result.call].module} returned {got} instead of"
                    f" {expected.dtype} {tuple(expected.shape)}, which it returned when the model was split"
                )
            tensors[result] = found.contiguous()
            # The schedules of torch expect a gradient for whatever is sent, also for a constant such as a mask.
            if torch.is_grad_enabled() and not found.requires_grad:
                tensors[result] = tensors[result].detach().requires_grad_()
        return tuple(tensors[result] for result in self.plan.sends)

    def _received_or_zeros(self, result: Result, leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        received = self.tensors.get(result)
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=self.device) if received is None else received

    def _name(self) -> str:
        return f"stage {self.plan.index} of {self.plan.stages}"


class _OtherStage(Placeholder):
    """Takes the place of a module of another stage."""

    def __init__(self, run: _StageRun, name: str, original: nn.Module) -> None:
        super().__init__(name, original)
        self.run = run

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        position = self.run.next_position(self.name)
        if position >= self.run.plan.end:
            raise _StageEnd
        return self.run.stand_in(position)


def _forward(
    stage: nn.Module,
    run: _StageRun,
    finish: FinishForward | None,
    targets: Collection[str],
    /,
    *received: Tensor,
    **batch: Tensor,
) -> Any:
    """The forward of a stage."""
    if not run.observing:
        for name, module in _modules_with_results(stage, run):
            _observe(run, name, module)
        run.observing = True
    run.begin(received, next(tensor.device for tensor in batch.values()))
    try:
        output = type(stage).forward(stage, **{name: value for name, value in batch.items() if name not in targets})
    except _StageEnd:
        return run.end()
    if not run.plan.is_last:
        raise TrainerError(
            f"stage {run.plan.index} of {run.plan.stages}: forward ended without a call of a later stage"
        )
    run.end()
    return output if finish is None else finish(output, batch)


def _modules_with_results(stage: nn.Module, run: _StageRun) -> Iterator[tuple[str, nn.Module]]:
    """The modules that the stage holds and whose results it sends or receives."""
    names = {run.graph.calls[result.call].module for result in (*run.plan.sends, *run.plan.receives)}
    for name in sorted(names):
        module = stage.get_submodule(name)
        if not isinstance(module, Placeholder):
            yield name, module


def _observe(run: _StageRun, name: str, module: nn.Module) -> None:
    """From now on, keep what is to be sent of the module's output, and replace what was received instead.

    A class of its own replaces the module's, since torch.compile would compile a hook together with the module. At the
    first forward, because FSDP and activation checkpointing must have changed the module before.
    """
    called = type(module)

    def observed_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        output = called.__call__(self, *args, **kwargs)
        if not run.active:  # recomputation in backward
            return output
        position = run.next_position(name)
        if position < run.plan.start:
            return run.stand_in(position)
        run.keep(position, output)
        return output

    module.__class__ = type(called.__name__, (called,), {"__call__": observed_call, "__module__": called.__module__})
