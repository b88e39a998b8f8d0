"""A Python function as a script of its own, as Kubeflow's client has it: the source of the function and a call.

The script has nothing of the module of the function, so that a function of a notebook runs as one of a file does.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from muster.errors import InvalidSpec

_FIRST_LINE = "from __future__ import annotations\n\n"


def function_script(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The script that calls the function. Raises `InvalidSpec` for a function that needs what only its module or an
    enclosing function has, for one without source, and for arguments that are not literals."""
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function) or not name.isidentifier() or inspect.iscoroutinefunction(function):
        raise _invalid(f"must be a function made with `def`, or the path of a script; got {function!r}")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise _invalid(f"the source of {name} is not known; write it into a file or a notebook: {error}") from error
    if missing := sorted(set(_outer_names(source)) - {name} - set(dir(builtins)) - {"__name__", "__file__"}):
        names = ", ".join(missing)
        raise _invalid(f"{name} uses {names} of its module; import or define them within it, or pass them as arguments")
    _bind(function, args, kwargs)
    call = ", ".join([*(_literal(name, at, value) for at, value in enumerate(args)),
                      *(f"{key}={_literal(name, key, value)}" for key, value in kwargs.items())])  # fmt: skip
    return f'{_FIRST_LINE}{source.rstrip()}\n\n\nif __name__ == "__main__":\n    {name}({call})\n'


def _outer_names(source: str) -> Iterator[str]:
    """Names that the source reads and that nothing in it defines."""
    top = symtable.symtable(_FIRST_LINE + source, "function", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_outer = symbol.is_global() or (table is top and not symbol.is_assigned())
            if is_outer and symbol.is_referenced() and symbol.get_name() not in defined:
                yield symbol.get_name()


def _bind(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise _invalid(f"{function.__name__}: {error}") from error


def _literal(name: str, argument: object, value: Any) -> str:
    """The value as source."""
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        same = False
    if not same:
        message = "must be numbers, text, booleans, None, or lists, tuples, sets and dicts of them"
        raise _invalid(f"argument {argument} of {name}: {message}; got {text[:80]}")
    return text


def _invalid(message: str) -> InvalidSpec:
    return InvalidSpec(f"function: {message}", field="function", reason="Usage")
