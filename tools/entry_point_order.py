"""Keeps entry points in the order in which pyproject.toml writes them, and drops those of modules that TorchX has not.

TorchX takes the first registered scheduler as the default of `torchx run`, and hatchling sorts entry points by name:
without this hook the default would be aws_batch. With it, the default stays what it is without Muster.

The list of pyproject.toml is that of TorchX 0.7.0; nightlies have fewer schedulers. Where TorchX is installed beside
the build (`tools/environment.sh`, `pip install --no-build-isolation`), only entry points of its modules remain.
"""

from importlib.util import find_spec
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EntryPointOrder(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before it writes the wheel, editable ones included."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Reorder every group in place; names and targets stay as hatchling validated them."""
        core = self.metadata.core
        for group, written in core.config["entry-points"].items():
            validated = core.entry_points[group]
            in_order = {name: validated[name] for name in written if _is_there(validated[name])}
            validated.clear()
            validated.update(in_order)


def _is_there(target: str) -> bool:
    """Whether the module of an entry point exists, as far as it is one of TorchX and TorchX is installed."""
    module = target.partition(":")[0]
    return not module.startswith("torchx.") or find_spec("torchx") is None or find_spec(module) is not None
