"""The help format of `-h`: each argument, option and command with one sentence.

Typer would add types, defaults, bounds and [required] in brackets. Here the sentences contain what matters of these,
and the usage line shows what is required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])
_MAX_WIDTH = 110  # columns
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH}


class HelpTyper(typer.Typer):
    """A Typer application whose commands use `HelpCommand`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """As Typer's."""
        return super().command(name, **{"cls": HelpCommand, **settings})


class HelpCommand(TyperCommand):
    """One command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Required arguments as they are, optional ones in brackets."""
        return _usage_pieces(self.get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options with their help."""
        _write_sections(self.get_params(ctx), formatter)


class HelpGroup(TyperGroup):
    """Commands, listed under section titles with the first sentence of their help."""

    sections: Mapping[str, Sequence[str]] = {}
    """Command names in order, by title; empty: all commands in the order they were added."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands in the order of the help."""
        return [name for names in self._sections().values() for name in names]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options, then the command."""
        return [*_usage_pieces(self.get_params(ctx)), "VERB ..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands first, then the global options."""
        self.format_commands(ctx, formatter)
        _write_sections(self.get_params(ctx), formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section per title."""
        for title, names in self._sections().items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, verb.get_short_help_str(limit=1000)) for name, verb in found if verb is not None]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=12)

    def _sections(self) -> Mapping[str, Sequence[str]]:
        return self.sections or {"Verbs": list(self.commands)}


def _usage_pieces(params: Iterable[Any]) -> list[str]:
    needed = [f"{param.opts[0]} {_metavar(param)}" for param in params if _is_option(param) and param.required]
    names = [_metavar(param) + ("..." if param.nargs != 1 else "") for param in params if not _is_option(param)]
    must = [param.required for param in params if not _is_option(param)]
    return [
        *needed,
        "[OPTIONS]",
        *(name if needed_ else f"[{name}]" for name, needed_ in zip(names, must, strict=True)),
    ]


def _write_sections(params: Iterable[Any], formatter: Any) -> None:
    shown = [param for param in params if not param.hidden]
    arguments = [(_metavar(param), param.help or "") for param in shown if not _is_option(param)]
    options = [(_option_names(param), param.help or "") for param in shown if _is_option(param)]
    for title, rows in (("Arguments", arguments), ("Options", options)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _option_names(option: Any) -> str:
    """`-q, --queue QUEUE`; `--report, --no-report`."""
    names = sorted(option.opts, key=len) + list(option.secondary_opts)
    return ", ".join(names) + ("" if option.is_flag else f" {_metavar(option)}")


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")
