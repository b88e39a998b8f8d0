"""What the command line of a pod starts: the number of processes, the script of each rank and its data. Pure.

Only launchers whose arguments are known are parsed: Muster's, torchrun, and torchrun or Python within `sh -c`, as
TorchX's `dist.ddp` and `utils.sh` start them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from pathlib import PurePath

from muster.text import closest_match

LAUNCHER_MODULE = "muster_components.launch"
LAUNCHER_OPTIONS = ("--nproc", "--nnodes")
_TRAINER_MODULE = "muster_components.trainer"
INSTRUMENT_MODULE = "muster_components.trainer.instrument"
RUN_DIR_REFERENCE = "$(MUSTER_RUN_DIR)/"  # a script in the run folder is not there before the job is accepted
_TITAN_MODULE = "muster_components.titan"
_MODULES = (LAUNCHER_MODULE, _TRAINER_MODULE, INSTRUMENT_MODULE, _TITAN_MODULE)
_MISSPELLED = 0.9  # similarity; a module below one of these, such as its `__main__`, has less
_MAX_DIGITS = 18  # of a number of processes; a longer number, cut to these, still exceeds every node
_NPROC_OPTIONS = {
    LAUNCHER_MODULE: ("--nproc",),
    "torch.distributed.run": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.launch": ("--nproc-per-node", "--nproc_per_node"),
}
_TRACING_MODULE = re.compile(r"\bmuster_components\.(trainer|titan)\b")
_PYTHON_OPTIONS = ("-W", "-X")  # with a value
_PYTHON = re.compile(r"python[\d.]*|torchrun")


def script_argument(line: Sequence[str]) -> str | None:
    """The script: the first argument that is the name of a Python file; None after `-m MODULE` and `-c TEXT`, whose
    arguments may be files to write. Muster's launcher has the script after `--`, its tracing module after itself. Of
    `sh -c TEXT`, the script of a single command that starts Python or torchrun."""
    words = _simple_command(line)
    arguments = _rank_arguments(words[1:])
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if argument == "-m" and arguments[index : index + 1] == [INSTRUMENT_MODULE]:
            index += 1
        elif argument in ("-m", "-c") or argument.startswith(RUN_DIR_REFERENCE):
            return None
        elif argument.endswith(".py") and not argument.startswith("-") and "$" not in argument:
            return None if _is_inline_code(argument) else argument
    return None


def records_traces(line: Sequence[str], script_text: str | None) -> bool:
    """Whether a program may record traces: it starts Muster's trainer or `instrument`, its script is not known (None),
    or the script names Muster's modules or variables (docs/reference/run-folder.md)."""
    return any(_TRACING_MODULE.search(word) for word in line) or script_text is None or "muster" in script_text.lower()


def _simple_command(line: Sequence[str]) -> list[str]:
    """The words of the command; of `sh -c TEXT` those of TEXT if it is one command that starts Python or torchrun,
    else none."""
    if not _is_shell(line):
        return list(line)
    lexer = shlex.shlex(line[2].strip(), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return []
    if "\n" in line[2].strip() or any(word and set(word) <= set("();<>|&") for word in words):
        return []
    return words if words and _PYTHON.fullmatch(PurePath(words[0]).name) else []


def _is_shell(line: Sequence[str]) -> bool:
    return len(line) > 2 and PurePath(line[0]).name in ("sh", "bash") and line[1] == "-c"


def unknown_launcher_argument(line: list[str]) -> str | None:
    """The first argument that Muster's launcher does not have; None if another program runs."""
    arguments = line[1:]
    if not _runs_launcher(arguments):
        return None
    own = _before_separator(arguments[arguments.index("-m") + 2 :])
    index = 0
    while index < len(own):
        name, is_joined, _ = own[index].partition("=")
        if name not in LAUNCHER_OPTIONS:
            return own[index]
        index += 1 if is_joined else 2
    return None


def misspelled_module(line: Sequence[str]) -> tuple[str, str] | None:
    """A module that Python starts and that is nearly one of Muster's, and Muster's; None if there is none. What follows
    a script, or a module that starts nothing itself, are its own arguments."""
    before = ""
    for option, name in pairwise(_simple_command(line)):
        is_value = before in _PYTHON_OPTIONS or "=" in option  # of an option, or of a variable for `env`
        if option.endswith(".py") and not (option.startswith("-") or is_value):
            return None
        before = option
        if option == "-m" and name not in (*_MODULES, *_NPROC_OPTIONS):
            near = closest_match(name, _MODULES, _MISSPELLED)
            return None if near is None else (name, near)
    return None


def wrong_launcher_value(line: list[str]) -> tuple[str, str] | None:
    """Option and value of the first argument of Muster's launcher that is not a positive integer; None if there is
    none, or another program runs. `$(NAME)` is known when the pod starts."""
    arguments = line[1:]
    if not _runs_launcher(arguments) or unknown_launcher_argument(line) is not None:
        return None
    own = _before_separator(arguments[arguments.index("-m") + 2 :])
    index = 0
    while index < len(own):
        name, is_joined, value = own[index].partition("=")
        if not is_joined:
            value = next(iter(own[index + 1 :]), "")
        index += 1 if is_joined else 2
        if "$" not in value and not (value.isdecimal() and value.strip("0")):
            return name, value
    return None


def trainer_arguments(line: list[str]) -> list[str] | None:
    """The arguments of Muster's trainer; None if another program runs."""
    arguments = _rank_arguments(line[1:])
    return arguments[2:] if arguments[:2] == ["-m", _TRAINER_MODULE] else None


def data_argument(line: list[str]) -> str | None:
    """The value of `--data` of Muster's trainer; None if another program runs."""
    arguments, data = trainer_arguments(line) or [], None
    for flag, value in zip_longest(arguments, arguments[1:]):
        if flag == "--data":
            data = value
        elif flag.startswith("--data="):
            data = flag.removeprefix("--data=")
    return data


def _runs_launcher(arguments: Sequence[str]) -> bool:
    return "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] == LAUNCHER_MODULE


def _rank_arguments(arguments: list[str]) -> list[str]:
    """The command of each rank if Muster's launcher runs, else the arguments themselves."""
    if _runs_launcher(arguments) and "--" in arguments:
        return arguments[arguments.index("--") + 1 :]
    return arguments


def _before_separator(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _is_inline_code(argument: str) -> bool:
    """Whether it is shell or Python code (`-c "import x.py"`) rather than a file name."""
    return any(char in argument for char in " \n;=()'\"")


def processes_per_pod(line: Sequence[str]) -> int | None:
    """The number of processes that a command line starts in each pod; None if another program runs, or the number is
    not given (`--nproc_per_node=gpu`)."""
    words = list(line)
    if _is_shell(words):
        try:
            words = shlex.split(words[2])
        except ValueError:
            return None
    if words and PurePath(words[0]).name == "torchrun":
        return _option_value(_NPROC_OPTIONS["torch.distributed.run"], words[1:])
    module = words.index("-m") + 1 if "-m" in words[:-1] else len(words)
    options = _NPROC_OPTIONS.get(words[module]) if module < len(words) else None
    return None if options is None else _option_value(options, words[module + 1 :])


def _option_value(options: Sequence[str], arguments: Sequence[str]) -> int | None:
    """The value of the first of these options before `--`, since later arguments may be a script's; 1 without any."""
    own = _before_separator(arguments)
    for index, word in enumerate(own):
        name, joined, value = word.partition("=")
        if name in options:
            text = value if joined else next(iter(own[index + 1 :]), "")
            return int(text.lstrip("0")[:_MAX_DIGITS] or "0") if text.isdecimal() else None
    return 1
