"""Functions and objects of the user's modules, named `my.module:name`."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.errors import InputError, UserCodeError

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PROGRAMMING_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
)


@contextmanager
def programming_errors(flag: str, reference: str, *, same_on_all_ranks: bool = True) -> Iterator[None]:
    """Raise UserCodeError in place of an error of the user's code that a retry would repeat.

    Errors that may not occur again (files, network, memory), and those raised `from` one, are not changed.
    """
    try:
        yield
    except InputError:
        raise
    except _PROGRAMMING_ERRORS as error:
        if any(isinstance(cause, OSError | MemoryError) for cause in _causes(error)):
            raise
        message = f"{flag} {reference} raised {type(error).__name__}: {error}"
        raise UserCodeError(message, same_on_all_ranks=same_on_all_ranks) from error


def _causes(error: BaseException) -> list[BaseException]:
    """The error, what it was raised `from`, and so on."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:  # `raise error from error`
        found.append(cause)
        cause = cause.__cause__
    return found


def is_reference(text: str) -> bool:
    """Whether this has the form `my.module:name` and is not a path that exists."""
    return _REFERENCE.fullmatch(text) is not None and not Path(text).exists()


def load_reference(flag: str, reference: str) -> Any:
    """Import the module and return the object. Raises InputError, UserCodeError for an error in the module."""
    module_name, _, path = reference.partition(":")
    with programming_errors(flag, reference):
        try:
            value: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module exists, and imports one that does not
            raise InputError(
                f"{flag} {reference}: no module {error.name!r}; the module must be in the working folder, in "
                "PYTHONPATH or installed"
            ) from error
        for name in path.split("."):
            if not hasattr(value, name):  # calls the module's `__getattr__`, if it has one
                near = difflib.get_close_matches(name, dir(value), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InputError(f"{flag} {reference}: {module_name} has no {name!r}{hint}")
            value = getattr(value, name)
    return value


def load_and_call(flag: str, reference: str) -> Any:
    """The object, or what it returns if it is a function or a class: an object with `__getitem__` is not called. Raises
    InputError, as `load_reference`."""
    value = load_reference(flag, reference)
    with programming_errors(flag, reference):
        is_called = isinstance(value, type) or (callable(value) and not hasattr(value, "__getitem__"))
        return value() if is_called else value
