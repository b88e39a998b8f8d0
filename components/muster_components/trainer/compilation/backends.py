"""The backends of torch.compile by the name that `--backend` gives, and compilation of modules with one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from muster_components.trainer.errors import InputError

Backend = str | Callable[..., Any]
"""What torch.compile accepts as backend."""

THUNDER: Final = "thunder"


def find_backend(name: str) -> Backend:
    """The backend called `name`: Thunder, which does not register itself, or one that is registered with torch.

    Packages register theirs through the entry point group `torch_dynamo_backends`. Raises InputError for an unknown
    name, or if Thunder cannot be imported.
    """
    registered = torch.compiler.list_backends(exclude_tags=())
    if name in registered:
        return name
    if name == THUNDER:
        return _thunder()
    usable = [known for known in registered if "TESTING_ONLY" not in known and "minifier" not in known]
    raise InputError(f"--backend must be one of {', '.join(sorted([*usable, THUNDER]))}; got {name!r}")


def _thunder() -> Backend:
    try:
        compiler: Backend = importlib.import_module("thunder.dynamo").ThunderCompiler()
    except (ImportError, AttributeError) as error:  # AttributeError: it reads names that this torch no longer has
        raise InputError(
            f"--backend thunder requires the package lightning-thunder in a version for torch {torch.__version__}; "
            f"got {type(error).__name__}: {error}"
        ) from error
    return compiler


def compile_in_place(module: nn.Module, backend: Backend) -> None:
    """Compile the forward of `module` as one graph; names of parameters do not change.

    Dynamo compiles the frame of `forward`, and leaves the hooks around it, such as FSDP2's, outside of the graph. But
    it skips the files of torch.nn, so that of nn.TransformerEncoderLayer it compiled nothing (torch before 2.13), found
    no frame (2.13) or came upon the hooks (2.14). A class whose forward is torch's own gets one of this file.
    """
    if type(module).forward.__module__.startswith("torch."):
        module.__class__ = _with_own_forward(type(module))  # type: ignore[arg-type]
    module.compile(fullgraph=True, dynamic=False, backend=backend)


@functools.cache  # one class for all blocks, which share a graph
def _with_own_forward(module_class: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module_class.forward(self, *args, **kwargs)

    return type(f"Compiled{module_class.__name__}", (module_class,), {"forward": forward})
