"""Run any training script unchanged, with Muster's heartbeat and traces added.

    torchrun ... -m muster_components.trainer.instrument [--trace_steps 20:25 ...] SCRIPT args...
    torchrun ... -m muster_components.trainer.instrument -m MODULE args...

The optimizer steps of the script are counted by a hook (see optimizer_hook.py). A script without torch runs as well.
The exit code is that of the script.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import install_stack_handler, run_context, silence_kineto
from muster_components.trainer.errors import EXIT_FAILED, EXIT_IMPORT, InputError, TrainerError
from muster_components.trainer.flag_parser import FlagParser
from muster_components.trainer.flags import add_trace_flags, trace_config
from muster_components.trainer.flight_recorder import serve_flight_recorder
from muster_components.trainer.framework_hooks import install_framework_hooks, install_transformers_hook
from muster_components.trainer.framework_stops import install_framework_stops
from muster_components.trainer.optimizer_hook import OptimizerWatcher, install_optimizer_hook
from muster_components.trainer.reporter import Reporter
from muster_components.trainer.reports import ReportReader, flush_reports, report_file

_OUR_FILES = frozenset({__file__, runpy.run_path.__code__.co_filename})  # runpy is frozen: it has no file


@dataclass(frozen=True, slots=True)
class Program:
    """The script's path or module's name, and its arguments."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]


def parse_arguments(arguments: Sequence[str]) -> tuple[Program, TraceConfig]:
    """Split the flags of `instrument` from the target; arguments after the target belong to it. Raises InputError."""
    parser = FlagParser(prog="python -m muster_components.trainer.instrument", allow_abbrev=False, description=__doc__,
                        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_trace_flags(parser)
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the name that follows is a module, not a script"
    )
    parser.add_argument("target", nargs=argparse.REMAINDER, metavar="SCRIPT|MODULE args...")
    flags = parser.parse_args(list(arguments))
    if not flags.target:
        raise InputError("nothing to run: give a Python script, or -m MODULE")
    return Program(flags.target[0], flags.module, tuple(flags.target[1:])), trace_config(flags, os.environ)


def check_program(program: Program) -> None:
    """Raises InputError if the script or module does not exist."""
    if program.is_module:
        try:
            found = importlib.util.find_spec(program.name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise InputError(f"module {program.name!r} does not exist; give a module that `python -m` can run")
    elif not Path(program.name).exists():
        raise InputError(
            f"script {program.name!r} does not exist (looked in {Path.cwd()}); "
            "give the path of a Python file, or -m MODULE"
        )
    elif not Path(program.name).is_file():
        raise InputError(f"script {program.name!r} is a folder; give the path of a Python file, or -m MODULE")


def run_program(program: Program) -> None:
    """Run the target as `python SCRIPT` or `python -m MODULE`, in this process."""
    sys.argv = [program.name, *program.arguments]
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program.name).resolve().parent)
        runpy.run_path(program.name, run_name="__main__")


def main(arguments: Sequence[str]) -> int:
    """Run the target. SystemExit of the target passes through; returns 0 at its end, 1 for an exception, and
    EXIT_IMPORT if it could not import torch."""
    try:
        target, trace = parse_arguments(arguments)
        check_program(target)
        context = run_context(os.environ)
    except TrainerError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"instrument: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    install_stack_handler(os.environ)
    serve_flight_recorder(os.environ)
    silence_kineto(os.environ)
    file = report_file(os.environ)
    watcher = OptimizerWatcher(context, trace, Reporter(context, reports=ReportReader(file) if file else None))
    install_optimizer_hook(watcher)
    install_transformers_hook()
    framework_reports = install_framework_hooks(os.environ)
    install_framework_stops(os.environ, watcher.continue_after)
    watcher.on_start()
    try:
        run_program(target)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, which need not be imported
            watcher.on_out_of_memory()
        shown = _strip_own_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(shown), shown)  # the script may have set its own
        return EXIT_IMPORT if _is_import_of_torch(error) else EXIT_FAILED
    finally:
        flush_reports()
        if framework_reports is not None:
            framework_reports.flush()
        watcher.on_finish()
    return 0


def _is_import_of_torch(error: Exception) -> bool:
    """Whether torch could not be imported; an error of the dynamic linker names no module."""
    return isinstance(error, ImportError) and "torch" not in sys.modules and (error.name or "torch").startswith("torch")


def _strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this module and runpy, as with `python SCRIPT`."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OUR_FILES:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
