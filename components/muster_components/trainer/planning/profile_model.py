"""What each part of a model costs, measured by running it on tensors without values.

Parts are the blocks, other modules that are compiled, and all code between two of their calls. Blocks of one class with
the same shapes are measured once. The model itself is neither changed nor described by hand, so this works for every
model that the trainer can train, on a machine without a GPU.

Fake tensors are on the CPU: its fused attention saves what those of GPUs save (queries, keys, values, output and one
number per row).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from muster_components.trainer.config import RECOMPUTE_MODES, Float8Config, Recompute
from muster_components.trainer.models.interface import Batch, TrainModel, forward_arguments
from muster_components.trainer.models.module_tree import plain_tensors
from muster_components.trainer.parallel.float8 import convert_to_float8
from muster_components.trainer.parallel.sharding import apply_activation_checkpointing, selective_policy
from muster_components.trainer.planning.compiled_cost import Policies, compiled_costs
from muster_components.trainer.planning.cost import Cost, between, tensor_bytes
from muster_components.trainer.planning.eager_cost import eager_cost
from muster_components.trainer.planning.outside_cost import OutsideRun, UnitCall, replaced_forward

SAMPLES: Final = (2, 4)
"""Costs are linear in the micro-batch: these two sizes determine them."""

_POLICIES: Final[Policies] = {
    "none": None,
    "selective": lambda operator: selective_policy(None, operator),
    "full": lambda _operator: CheckpointPolicy.PREFER_RECOMPUTE,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the model: `rows` of `width` numbers, sharded by rows. `index` is the same for tied ones."""

    index: int
    rows: int
    width: int

    @property
    def numel(self) -> int:
        return self.rows * self.width

    def shard(self, ranks: int) -> int:
        """Numbers on the first of `ranks`, which has most."""
        return math.ceil(self.rows / ranks) * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the model, in order of execution. `is_block`: recomputation applies to it.

    `sharded_alone`: FSDP2 gathers its parameters when it is called, and not with those of the whole model.
    """

    name: str
    is_block: bool
    sharded_alone: bool
    parameters: tuple[Parameter, ...]
    low: Mapping[str, Cost]
    high: Mapping[str, Cost]


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The parts of a model, and all of its parameters, tied ones once. `sample_bytes`: of one sample of a batch;
    `attention_dropout`: whether fused attention has dropout."""

    parts: tuple[Part, ...]
    parameters: tuple[Parameter, ...]
    sample_bytes: float = 0.0
    attention_dropout: bool = False
    _costs: dict[tuple[int, str, int], Cost] = field(default_factory=dict, repr=False, compare=False)

    def cost(self, part: Part, recompute: Recompute, samples: int) -> Cost:
        """Of a part, for a micro-batch of `samples`."""
        mode = recompute if part.is_block and recompute in part.low else "none"
        key = (id(part.low), mode, samples)  # equal blocks share it
        if key not in self._costs:
            self._costs[key] = between(part.low[mode], part.high[mode], *SAMPLES, samples)
        return self._costs[key]

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How the model is run. `dtype`: of weights in forward; `autocast`: they stay float32, and bf16 copies are used.

    `compiled`: the model's `compiled_modules` are. `fused`: a small model on one GPU, see `compile_whole`. `float8`: of
    layers that are compiled; others cost what they do in bf16.
    `memory_budget`: of compiled modules, which are then measured with it alone.
    """

    compiled: bool
    dtype: torch.dtype = torch.bfloat16
    autocast: bool = False
    fused: bool = False
    float8: Float8Config = Float8Config()
    memory_budget: float | None = None


def profile_model(model: TrainModel, batch: Callable[[int], Batch], options: ProfileOptions) -> ModelProfile:
    """Measure a model; `batch(n)` are n samples on the CPU.

    Raises whatever the model raises on tensors without values, such as control flow that depends on them.
    """
    low, high = (_Run(model, batch(samples), options) for samples in SAMPLES)
    parts = tuple(
        Part(
            name=at_low.name,
            is_block=at_low.is_block,
            sharded_alone=at_low.sharded_alone,
            parameters=at_low.parameters,
            low=at_low.costs,
            high=at_high.costs,
        )
        for at_low, at_high in zip(low.parts, high.parts, strict=True)
    )
    return ModelProfile(parts, low.parameters, tensor_bytes(batch(1)), low.attention_dropout)


@dataclass(frozen=True, slots=True)
class _MeasuredPart:
    name: str
    is_block: bool
    sharded_alone: bool
    parameters: tuple[Parameter, ...]
    costs: Mapping[str, Cost]


class _Run:
    """One micro-batch, of one size."""

    def __init__(self, model: TrainModel, batch: Batch, options: ProfileOptions) -> None:
        self._options = options
        self._mode = FakeTensorMode()
        with self._mode, torch.device("cpu"), _attention_without_dropout() as rates:
            with torch.device("meta"):
                module = model.build()
            _replace_tensors(module, None if options.autocast else options.dtype)
            if options.compiled and options.float8.recipe is not None:
                convert_to_float8(module, model.blocks(module), options.float8, gathers=False)
            if options.fused and hasattr(module, "fused_loss"):
                module.fused_loss = True  # type: ignore[assignment]
            self._names = {id(child): name for name, child in module.named_modules()}
            self._blocks = set(map(id, model.blocks(module)))
            self._compiled = set(map(id, model.compiled_modules(module))) if options.compiled else set[int]()
            found = {id(unit): unit for unit in (*model.blocks(module), *model.compiled_modules(module))}
            if options.fused:
                found = {id(unit): unit for unit in model.blocks(module)}
            self._units = list(found.values())
            self._indices: dict[int, Parameter] = {}
            for parameter in module.parameters():
                rows = parameter.shape[0] if parameter.dim() else 1
                self._indices[id(parameter)] = Parameter(len(self._indices), rows, parameter.numel() // max(1, rows))
            self.parameters = tuple(self._indices.values())
            fakes: dict[str, Tensor] = {name: self._mode.from_tensor(tensor) for name, tensor in batch.items()}
            if not options.autocast:
                fakes = {name: t.to(options.dtype) if t.is_floating_point() else t for name, t in fakes.items()}

            def forward() -> Tensor:
                with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
                    return model.loss(module(**forward_arguments(model, fakes)), fakes)

            calls = self._record(forward)
            costs = self._unit_costs(calls)
            outside = OutsideRun(calls, self._units, [*module.parameters(), *module.buffers(), *fakes.values()])
            outside.run(forward)
        self.parts = self._parts(module, calls, costs, outside)
        self.attention_dropout = max(rates, default=0.0) > 0

    def _record(self, forward: Callable[[], Tensor]) -> list[UnitCall]:
        calls: list[UnitCall] = []

        def record(unit: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            output = type(unit).forward(unit, *args, **kwargs)
            calls.append(UnitCall(unit, args, kwargs, output))
            return output

        with replaced_forward(self._units, record):
            forward()
        return calls

    def _unit_costs(self, calls: Sequence[UnitCall]) -> list[Mapping[str, Cost]]:
        measured: dict[str, Mapping[str, Cost]] = {}
        costs = []
        for call in calls:
            key = _signature(call)
            if key not in measured:
                measured[key] = self._measure(call)
            costs.append(measured[key])
        return costs

    def _measure(self, call: UnitCall) -> Mapping[str, Cost]:
        is_block = id(call.unit) in self._blocks
        with torch.autocast("cpu", torch.bfloat16, enabled=self._options.autocast):
            if id(call.unit) in self._compiled:
                budget = self._options.memory_budget
                policies = _POLICIES if is_block and budget is None else {"none": None}
                return compiled_costs(call.unit, call.args, call.kwargs, policies, 1.0 if budget is None else budget)
            costs: dict[str, Cost] = {}
            original = type(call.unit)
            for mode in RECOMPUTE_MODES if is_block else RECOMPUTE_MODES[:1]:
                apply_activation_checkpointing([call.unit], mode)
                try:
                    costs[mode] = eager_cost(call.unit, call.args, call.kwargs)
                finally:
                    call.unit.__class__ = original
            return costs

    def _parts(
        self,
        module: nn.Module,
        calls: Sequence[UnitCall],
        costs: Sequence[Mapping[str, Cost]],
        outside: OutsideRun,
    ) -> list[_MeasuredPart]:
        in_units = {id(parameter) for unit in self._units for parameter in unit.parameters()}
        unused = [p for p in module.parameters() if id(p) not in in_units and id(p) not in outside.seen]
        shared = _shared_parameters(module)
        parts = []
        for number, cost in enumerate(outside.costs):
            parameters = [*outside.parameters[number], *(unused if number == 0 else ())]
            found = tuple(self._indices[id(parameter)] for parameter in parameters)
            parts.append(_MeasuredPart(f"outside {number}", False, False, found, {"none": cost}))
            if number < len(calls):
                unit = calls[number].unit
                own = tuple(self._indices[id(parameter)] for parameter in unit.parameters())
                alone = not any(id(parameter) in shared for parameter in unit.parameters())
                is_block = id(unit) in self._blocks
                parts.append(_MeasuredPart(self._names[id(unit)], is_block, alone, own, costs[number]))
        return [part for part in parts if part.parameters or part.costs["none"] != Cost()]


@contextlib.contextmanager
def _attention_without_dropout() -> Iterator[set[float]]:
    """CPUs have no fused attention with dropout, GPUs have; dropout changes nothing else of its memory. Yields the
    rates of dropout that are asked for.

    The function is replaced, since a mode of torch functions is not active where backward computes forward again.
    """
    original = F.scaled_dot_product_attention
    rates: set[float] = set()

    def attention(*args: Any, **kwargs: Any) -> Tensor:
        rates.add(kwargs.get("dropout_p", 0.0))
        return original(*args, **{name: value for name, value in kwargs.items() if name != "dropout_p"})

    F.scaled_dot_product_attention = attention
    try:
        yield rates
    finally:
        F.scaled_dot_product_attention = original


def _replace_tensors(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Give the module fake tensors on the CPU instead of those on the meta device; tied ones stay tied."""
    replaced: dict[int, Tensor] = {}
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in replaced:
                    is_parameter = isinstance(tensor, nn.Parameter)
                    cast = dtype if is_parameter and tensor.is_floating_point() else None
                    values = torch.empty(tensor.shape, dtype=cast or tensor.dtype, device="cpu")
                    replaced[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                tensors[name] = replaced[id(tensor)]  # type: ignore[assignment]
        for name, tensor in plain_tensors(owner).items():
            setattr(owner, name, torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))


def _shared_parameters(module: nn.Module) -> set[int]:
    """The ids of parameters that two modules or more have."""
    seen: set[int] = set()
    shared: set[int] = set()
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _signature(call: UnitCall) -> str:
    """Calls with the same one cost the same."""
    unit = call.unit
    shapes = [(name, tuple(parameter.shape), parameter.dtype) for name, parameter in unit.named_parameters()]
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    inputs = [
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, Tensor)
        else leaf
        if isinstance(leaf, bool | int | float | str)
        else type(leaf)
        for leaf in leaves
    ]
    return repr((type(unit), shapes, inputs, spec))
