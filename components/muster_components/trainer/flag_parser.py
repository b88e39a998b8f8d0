"""A parser of flags that names the flag that is wrong, and the one that was perhaps meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from muster_components.trainer.errors import InputError


class FlagParser(argparse.ArgumentParser):
    """argparse that raises InputError with the nearest known flag instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exit."""
        raise InputError(f"{message}; --help lists the flags")

    def parse_strict(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, and reject unknown flags."""
        written = [with_underscores(argument) for argument in arguments]
        self._check_known(written)  # before what is missing, perhaps because a flag is misspelled
        namespace, unknown = self.parse_known_args(written)
        if unknown:
            self._reject(unknown[0])
        return namespace

    def _check_known(self, arguments: Sequence[str]) -> None:
        known = [flag for action in self._actions for flag in action.option_strings]
        for argument in arguments:
            flag = argument.partition("=")[0]
            if argument == "--":
                return
            if argument.startswith("--") and not any(one.startswith(flag) for one in known):
                self._reject(argument)

    def _reject(self, argument: str) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(argument.partition("=")[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; --help lists the flags"
        raise InputError(f"{argument!r} is not a flag of this command{hint}")


def with_underscores(argument: str) -> str:
    """`--seq-len=8` as `--seq_len=8`; values are unchanged."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument[2:].partition("=")
    return "--" + flag.replace("-", "_") + equals + value
