"""Muster's schedulers for the nightlies of TorchX, which look for plugins in this namespace package.

TorchX 0.7.0 and nightlies with `TORCHX_PLUGINS_SOURCE` 2 or 3 (the default) read the entry points of pyproject.toml,
which win: a name that is registered here, too, causes a warning in every command. So this module registers only if no
entry point is read. The schedulers that the installed TorchX ships come first, so that its default stays the same.
"""

from __future__ import annotations

import importlib
import os

from torchx.plugins import _registry, register
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

_ALL_SOURCES = 3


def _reads_entry_points() -> bool:
    sources = getattr(_registry, "PluginSource", None)
    flag = getattr(sources, "ENTRYPOINT", 0)
    return bool(int(os.environ.get("TORCHX_PLUGINS_SOURCE", _ALL_SOURCES)) & int(flag))


def _factory(name: str, module: str, function: str) -> object:
    def create(session_name: str, **parameters: object) -> object:
        return getattr(importlib.import_module(module), function)(session_name, **parameters)

    return register.scheduler(name=name)(create)


_SCHEDULERS = (
    *((name, module, "create_scheduler") for name, module in DEFAULT_SCHEDULER_MODULES.items()),
    ("muster_local", "muster.torchx", "create_local_scheduler"),
    ("muster", "muster.torchx", "create_scheduler"),
)

if not _reads_entry_points():
    # TorchX reads the attributes of this module in alphabetical order.
    globals().update({f"scheduler_{number:02}": _factory(*one) for number, one in enumerate(_SCHEDULERS)})
