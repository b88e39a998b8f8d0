"""`--model my.module:factory`: any module whose forward returns its loss."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from muster_components.trainer.compilation.backends import Backend
from muster_components.trainer.data.samples import Arrays, SampleSpec
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import Batch
from muster_components.trainer.models.module_tree import (
    allocate,
    copy_part,
    named_tensors,
    plain_tensors,
    repeated_blocks,
)
from muster_components.trainer.user_code import load_reference, programming_errors


class FactoryModel:
    """A module of the user, unmodified.

    `forward(**batch)` must return the mean loss of the micro-batch as a tensor, or an object or a dictionary with
    `loss`. The factory is called on the meta device for the shapes, and once on the CPU of each rank for the initial
    weights, with the same seed; each rank keeps its shard of them.
    """

    def __init__(self, reference: str, args: Mapping[str, str], factory: Callable[..., Any] | None = None) -> None:
        """`args` are keyword arguments of the factory, as Python literals or else text; `factory`: default: what
        `reference` names. Raises InputError."""
        self.name = reference
        self.targets: frozenset[str] = frozenset()
        self.sample_spec = SampleSpec("fields", weight=1.0, allows_padding=False)
        self._args = {key: _literal(text) for key, text in args.items()}
        self._factory: Callable[..., Any] = factory or load_reference("--model", reference)
        self._forward: inspect.Signature | None = None
        self._is_built = False
        if not callable(self._factory) or isinstance(self._factory, nn.Module):
            got = f"an object of class {type(self._factory).__name__}"
            raise InputError(f"--model {reference} must be a function or a class; got {got}")
        signature = _signature(self._factory)
        try:
            if signature is not None:
                signature.bind(**self._args)
        except TypeError as error:
            raise InputError(f"--model_args do not fit {reference}: {error}") from error

    @property
    def summary(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self._args.items()) or "no arguments"

    def build(self) -> nn.Module:
        """What the factory returns. Raises InputError if that is no module or has nothing to train; UserCodeError."""
        with programming_errors("--model", self.name):
            module = self._factory(**self._args)
        if not isinstance(module, nn.Module):
            raise InputError(f"--model {self.name} must return a torch.nn.Module; got {type(module).__name__}")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InputError(f"--model {self.name} must have a parameter that requires a gradient; got none")
        self._forward = _forward_signature(module)
        self._is_built = True
        return module

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        return repeated_blocks(module)

    def compiled_modules(self, module: nn.Module) -> Sequence[nn.Module]:
        return repeated_blocks(module)

    def compile_whole(self, module: nn.Module, backend: Backend) -> None:
        """Compile the module; graph breaks are allowed outside of blocks too."""
        module.compile(dynamic=False, backend=backend)

    @torch.no_grad()
    def initialize(self, module: nn.Module, device: torch.device, seed: int) -> None:
        """Copy this rank's shards, the buffers and other tensors from what the factory creates on the CPU."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed)
            created = self.build()
        allocate([module], device, recurse=True)
        values = dict(created.named_parameters(remove_duplicate=False)) | dict(created.named_buffers())
        for name, target in {**dict(named_tensors(module)), **dict(module.named_buffers())}.items():
            copy_part(target, values[name].__getitem__)
        sources = dict(created.named_modules())
        for name, part in module.named_modules():
            for attribute in plain_tensors(part):
                setattr(part, attribute, getattr(sources[name], attribute).to(device))

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """The fields are the arguments of forward. Raises InputError if forward does not take them."""
        if not self._is_built:
            with torch.device("meta"):
                self.build()
        if self._forward is not None:
            try:
                self._forward.bind(**samples)
            except TypeError as error:
                raise InputError(
                    f"--model {self.name}: forward{self._forward} does not take the fields {', '.join(samples)} of the "
                    f"data: {error}"
                ) from error
        return samples

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The mean over the micro-batch times its samples. Raises InputError if forward returned no loss."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(output).__name__
            raise InputError(
                f"--model {self.name}: forward must return the mean loss, or an object or dictionary with it as loss; "
                f"got {got}"
            )
        return loss.float().reshape(()) * next(iter(batch.values())).shape[0]

    def flops_per_sample(self) -> int | None:
        return None

    def architecture(self) -> dict[str, object]:
        return {"factory": self.name, "args": {key: repr(value) for key, value in self._args.items()}}


def _forward_signature(module: nn.Module) -> inspect.Signature | None:
    """None if it does not tell which fields the module takes: hooks may change them, and some callables have none."""
    if module._forward_pre_hooks or type(module).__call__ is not nn.Module.__call__:
        return None
    return _signature(module.forward)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """That of a decorated function is its decorator's, which may take other arguments than the function. None: some
    callables have none."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
