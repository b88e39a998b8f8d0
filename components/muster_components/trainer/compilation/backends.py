"""The backends of torch.compile by the name that `--backend` gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch

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
