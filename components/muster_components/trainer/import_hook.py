"""Calls a function with a module once it is imported, without importing it: the program may never do so, or make
settings before. And calls one beside a method of another library."""

from __future__ import annotations

import contextlib
import functools
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
        return
    waiting = next((hook for hook in sys.meta_path if isinstance(hook, _ImportHook) and hook.name == name), None)
    if waiting is not None:
        waiting.actions.append(action)
    else:
        sys.meta_path.insert(0, _ImportHook(name, [action]))


def call_after(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Call `action` with the same arguments after a method of a class; its errors are ignored, but not SystemExit. Does
    nothing if the class has no such method: another version."""
    _call_beside(owner, name, action, before=False)


def call_before(owner: Any, name: str, action: Callable[..., None]) -> None:
    """As `call_after`, before it."""
    _call_beside(owner, name, action, before=True)


def _call_beside(owner: Any, name: str, action: Callable[..., None], *, before: bool) -> None:
    method = getattr(owner, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if before:
            with contextlib.suppress(Exception):
                action(self, *arguments, **named)
        result = method(self, *arguments, **named)
        if not before:
            with contextlib.suppress(Exception):
                action(self, *arguments, **named)
        return result

    setattr(owner, name, call)


class _ImportHook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name: str, actions: list[Callable[[Any], None]]) -> None:
        self.name = name
        self.actions = actions
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Replace the loader of the module by this object."""
        if fullname != self.name:
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
        """Load the module, then call the actions."""
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # restore the module's own loader
        sys.meta_path.remove(self)
        self._loader.exec_module(module)
        for action in self.actions:
            action(module)
