"""A function as a script: what it may use, and what is refused with the reason."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.errors import InvalidSpec
from muster.sdk.function_script import function_script

SCALE = 3


def train(steps: int, lr: float = 0.1, *, names: tuple[str, ...] = ()) -> None:
    import json

    def inner(step: int) -> int:
        return step * steps

    class Counter:
        total = 0

    print(json.dumps([steps, lr, names, [inner(one) for one in range(2)], Counter.total]))


def recursive(depth: int) -> int:
    return depth and recursive(depth - 1)


def uses_a_global(steps: int) -> None:
    print(steps * SCALE)


def uses_an_import() -> None:
    print(os.getpid())


def uses_a_global_in_a_nested_function() -> None:
    print([(lambda value: value * SCALE)(one) for one in range(2)])


def default_of_the_module(steps: int = SCALE) -> None:
    print(steps)


async def waits() -> None:
    await asyncio.sleep(0)


def made_by_a_function() -> Callable[[], None]:
    outer = 3

    def made() -> None:
        print(outer)

    return made


def test_the_script_calls_the_function_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(function_script(train, (4,), {"lr": 0.5, "names": ("a'b", "c")}))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ended.stdout == '[4, 0.5, ["a\'b", "c"], [0, 4], 0]\n'


def test_a_function_may_call_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(function_script(recursive, (2,), {}))
    subprocess.run([sys.executable, script], check=True)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (uses_a_global, "SCALE"),
        (uses_an_import, "os"),
        (uses_a_global_in_a_nested_function, "SCALE"),
        (default_of_the_module, "SCALE"),
        (made_by_a_function(), "outer"),
    ],
)
def test_what_only_its_module_has_is_named(function: Callable[..., None], name: str) -> None:
    arguments = (3,) if function is uses_a_global else ()
    with pytest.raises(InvalidSpec, match=rf"{function.__name__} uses {name} of its module; import or define"):
        function_script(function, arguments, {})


@pytest.mark.parametrize("function", [lambda: None, print, waits, int, subprocess])
def test_only_plain_functions_are_accepted(function: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"function: must be a function made with `def`, or the path of a script"):
        function_script(function, (), {})


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def typed():\n    pass", space)  # noqa: S102
    with pytest.raises(InvalidSpec, match=r"the source of typed is not known; write it into a file or a notebook"):
        function_script(space["typed"], (), {})


@pytest.mark.parametrize("value", [Path("a"), object(), [Path("a")], float("nan"), float("inf")])
def test_arguments_that_are_no_literals_are_refused(value: object) -> None:
    with pytest.raises(InvalidSpec, match=r"argument lr of train: must be numbers, text"):
        function_script(train, (1,), {"lr": value})


def test_arguments_that_the_function_does_not_take_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"train: got an unexpected keyword argument 'learning'"):
        function_script(train, (1,), {"learning": 0.1})
    with pytest.raises(InvalidSpec, match=r"train: missing a required argument: 'steps'"):
        function_script(train, (), {})
