"""Linear layers that compute in float8, by torchao (docs/concepts/compile.md, "float8").

A converted layer casts its input, its weight and the gradient of its output to float8, each with a scale that is
computed from the current values, and multiplies them on the float8 tensor cores. Parameters, gradients, optimizer state
and checkpoints remain what they are without float8.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from muster_components.trainer.config import Float8Config
from muster_components.trainer.errors import InputError, MissingTorchError, install_extra
from muster_components.trainer.plan import FLOAT8_MULTIPLE


def require_torchao(config: Float8Config) -> None:
    """Raises MissingTorchError if float8 is wanted and torchao cannot be imported."""
    if config.recipe is None:
        return
    try:
        import torchao.float8  # noqa: F401
    except ImportError as error:
        raise MissingTorchError(
            f"--float8 {config.recipe} needs the package torchao; {install_extra('float8')} ({error})"
        ) from error


def convert_to_float8(
    module: nn.Module, blocks: Sequence[nn.Module], config: Float8Config, *, gathers: bool, tp: int = 1
) -> int:
    """Replace the linear layers of `blocks`, which are parts of `module`, in place; returns their number.

    Layers keep the names and values of their parameters. Some remain as they are: those with a dimension that is not a
    multiple of 16 on each of `tp` ranks, and those that may be used in another way than by a call: subclasses of
    nn.Linear, and layers whose weight another module has too. `gathers`: FSDP2 gathers the weights in float8, which
    needs tensorwise scaling. Raises InputError if there is nothing to convert.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    assert config.recipe is not None
    options = dataclasses.replace(
        Float8LinearConfig.from_recipe_name(config.recipe),
        emulate=config.emulate,
        enable_fsdp_float8_all_gather=gathers,
    )
    users: Counter[Tensor] = Counter(
        parameter for owner in module.modules() for parameter in owner.parameters(recurse=False)
    )

    def converts(child: nn.Module, _name: str) -> bool:
        return (
            type(child) is nn.Linear
            and users[child.weight] == 1
            and all(size % (FLOAT8_MULTIPLE * tp) == 0 for size in child.weight.shape)
        )

    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=converts, config=options)
    count = sum(isinstance(child, Float8Linear) for block in blocks for child in block.modules())
    if count == 0:
        raise InputError(
            f"--float8 {config.recipe}: the model has no block with linear layers whose dimensions are multiples of "
            f"{FLOAT8_MULTIPLE * tp}; remove --float8"
        )
    return count


def update_scales(module: nn.Module) -> None:
    """Compute the scales of all weights that FSDP2 gathers in float8, with one all-reduce: call it after the weights
    have changed. FSDP2 would compute them one by one otherwise."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(module)


def without_float8(value: Any) -> Any:
    """A tensor of a state dict as it is without float8, in the same memory: torchao wraps the weights that FSDP2
    gathers in float8. Other values unchanged."""
    if not isinstance(value, DTensor):
        return value
    weight = getattr(value.to_local(), "_tensor", None)
    if not isinstance(weight, Tensor):
        return value
    return DTensor.from_local(
        weight,
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )
