"""Calls a function with a module once it is imported, without importing it: the program may never do so, or make
settings before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Call `action` with the module now if it is imported, else right after it has been."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        action(loaded)
    else:
        sys.meta_path.insert(0, _ImportHook(name, action))


class _ImportHook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self._name = name
        self._action = action
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Replace the loader of the module by this object."""
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, then call the action."""
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # restore the module's own loader
        sys.meta_path.remove(self)
        self._loader.exec_module(module)
        self._action(module)
