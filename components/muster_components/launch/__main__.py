"""`python -m muster_components.launch --nproc N [--nnodes M] -- (SCRIPT | -m MODULE) [ARGS...]`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from muster_components.counts import is_count
from muster_components.launch.rank_layout import InvalidLayout, read_rank_layout
from muster_components.launch.supervisor import launch, log

EXIT_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Start the ranks of this pod. Returns the exit code of the rank that failed first, or 0."""
    try:
        options, program = _parse(argv)
        layout = read_rank_layout(os.environ, options.nproc, options.nnodes)
    except (InvalidLayout, FileNotFoundError) as error:
        log(str(error))
        return EXIT_USAGE
    return launch(layout, [sys.executable, *program], os.environ)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """The launcher's options, and the command of each rank. Exits for usage errors; raises FileNotFoundError."""
    parser = argparse.ArgumentParser(
        prog="python -m muster_components.launch",
        usage="%(prog)s [--nproc N] [--nnodes M] -- (SCRIPT | -m MODULE) [ARGS...]",
        allow_abbrev=False,
    )
    parser.add_argument("--nproc", type=_positive_integer, default=1, help="ranks of this pod (default 1)")
    parser.add_argument("--nnodes", type=_positive_integer, help="pods of the role (default MUSTER_REPLICAS, else 1)")
    cut = argv.index("--") if "--" in argv else len(argv)
    options, unknown = parser.parse_known_args(argv[:cut])
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], ["--nproc", "--nnodes"], 1)
        hint = f"did you mean {near[0]}?" if near else "give the command of the ranks after `--`"
        parser.error(f"{unknown[0]!r} is not an argument of the launcher; {hint}")
    program = argv[cut + 1 :]
    if not program or list(program) == ["-m"]:
        parser.error("the command of the ranks is missing; give a script, or -m and a module, after `--`")
    if program[0] != "-m" and not Path(program[0]).is_file():
        raise FileNotFoundError(f"script {program[0]} does not exist in {Path.cwd()}; give a path relative to it")
    return options, program


def _positive_integer(text: str) -> int:
    if not is_count(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; got {text!r}")
    return int(text)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Not sys.exit: a thread may still import torch, which may crash while the interpreter finalizes.
    os._exit(code)
