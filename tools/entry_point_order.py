"""Keeps entry points in the order in which pyproject.toml writes them.

TorchX takes the first registered scheduler as the default of `torchx run`, and hatchling sorts entry points by name:
without this hook the default would be aws_batch. With it, the default stays what it is without Muster.
"""

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
            in_order = {name: validated[name] for name in written}
            validated.clear()
            validated.update(in_order)
