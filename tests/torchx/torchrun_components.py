"""TorchX's own components that start torchrun: nightlies have dist.torchrun beside the deprecated dist.ddp."""

from __future__ import annotations

from torchx.components import dist

TORCHRUN_COMPONENTS = tuple(name for name in ("ddp", "torchrun") if hasattr(dist, name))
TORCHRUN = getattr(dist, TORCHRUN_COMPONENTS[-1])
