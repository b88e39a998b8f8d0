"""What a command line needs of this host, looked for before the job is accepted: the program, the folder it starts in,
a script, and the text that our trainer is to read. A path that is not there is a typing error more often than a file
that will be there in time.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping

from muster import spec
from muster.errors import InvalidSpec
from muster.local.environment import command_line, find_executable
from muster.local.submission import working_directory
from muster.text.suggest import did_you_mean

_LAUNCHER_MODULE = "muster_components.launch"
_LAUNCHER_OPTIONS = ("--nproc", "--nnodes")
_TRAINER_MODULE = "muster_components.trainer"
_INSTRUMENT_MODULE = "muster_components.trainer.instrument"


def check_program(
    job: spec.TrainingJob, container: spec.Container, base_environment: Mapping[str, str], path: str
) -> None:
    """Raises `InvalidSpec` for a program, script, text or working folder that is not there; `path` is the container's
    in the job."""
    if not container.command:
        raise InvalidSpec(
            f"{path}.command: empty; the image's entry point is not known here: write one, e.g. [python, -m, ...]",
            field=f"{path}.command",
        )
    cwd = working_directory(job, container)
    if not os.path.isdir(cwd):
        raise InvalidSpec(f"{path}.workingDir: {cwd!r} is no folder on this host", field=f"{path}.workingDir")
    environment = dict(base_environment) | {variable.name: variable.value or "" for variable in container.env}
    line = command_line(container, environment)
    if find_executable(line[0], environment["PATH"].split(os.pathsep), cwd) is None:
        raise InvalidSpec(
            f"{path}.command: {line[0]!r} is no program found in {cwd} or on PATH; install it or write its full path",
            field=f"{path}.command",
        )

    def place(word: str) -> str:
        """The field that holds a word of the command line."""
        index, own = line.index(word), len(container.command)
        return f"{path}.command[{index}]" if index < own else f"{path}.args[{index - own}]"

    wrong = unknown_launcher_argument(line)
    if wrong is not None:
        otherwise = f"it takes {' and '.join(_LAUNCHER_OPTIONS)}, and after `--` what each rank runs"
        right = did_you_mean(wrong.partition("=")[0], _LAUNCHER_OPTIONS, otherwise)
        field = place(wrong)
        raise InvalidSpec(f"{field}: {wrong!r} is no argument of {_LAUNCHER_MODULE}; {right}", field=field)
    script = script_argument(line)
    if script is not None and not os.path.isfile(os.path.join(cwd, script)):
        field = place(script)
        raise InvalidSpec(
            f"{field}: the script {script!r} does not exist in {cwd}; write a path that does, or set workingDir",
            field=field,
        )
    data = data_argument(line)
    if data is not None and not _data_exists(data, cwd):
        field = place(data if data in line else f"--data={data}")
        raise InvalidSpec(
            f"{field}: --data {data!r} does not exist in {cwd}; give a folder, a file, or a glob such as"
            " 'texts/**/*.txt'",
            field=field,
        )


def script_argument(line: list[str]) -> str | None:
    """The first argument that is a Python file's name: the script. Later ones may be files that it writes, and so may
    all that follow `-m MODULE` and `-c TEXT`; of our launcher we know that the script comes after `--`, and of what
    adds traces to a script that it comes next."""
    arguments = _rank_arguments(line[1:])
    if arguments[:2] == ["-m", _INSTRUMENT_MODULE]:
        arguments = arguments[2:]
    for argument in arguments:
        if argument in ("-m", "-c"):
            return None
        if (
            argument.endswith(".py")
            and not argument.startswith("-")
            and "$(" not in argument
            and not _is_inline_code(argument)
        ):
            return argument
    return None


def unknown_launcher_argument(line: list[str]) -> str | None:
    """The first argument that our launcher would refuse, and end with it; None where another program runs."""
    arguments = line[1:]
    if "-m" not in arguments[:-1] or arguments[arguments.index("-m") + 1] != _LAUNCHER_MODULE:
        return None
    own = arguments[arguments.index("-m") + 2 :]
    own = own[: own.index("--")] if "--" in own else own
    place = 0
    while place < len(own):
        name, is_joined, _ = own[place].partition("=")
        if name not in _LAUNCHER_OPTIONS:
            return own[place]
        place += 1 if is_joined else 2
    return None


def data_argument(line: list[str]) -> str | None:
    """What our trainer is to read (`--data`), as it is written; None where it is another program that runs."""
    arguments = _rank_arguments(line[1:])
    if arguments[:2] != ["-m", _TRAINER_MODULE]:
        return None
    given = None
    for flag, value in zip(arguments, [*arguments[1:], None], strict=True):
        if flag == "--data":
            given = value
        elif flag.startswith("--data="):
            given = flag.removeprefix("--data=")
    return given


def _rank_arguments(arguments: list[str]) -> list[str]:
    """What each rank runs, where our launcher starts them; else the arguments as they are."""
    if "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] == _LAUNCHER_MODULE and "--" in arguments:
        return arguments[arguments.index("--") + 1 :]
    return arguments


def _data_exists(data: str, cwd: str) -> bool:
    """Whether a folder, a file or a match of a glob is there, as the trainer looks for it."""
    path = os.path.join(cwd, os.path.expanduser(data))
    return os.path.exists(path) or (glob.has_magic(data) and next(glob.iglob(path, recursive=True), None) is not None)


def _is_inline_code(argument: str) -> bool:
    """A shell or Python text (`-c "import x.py"`), not a file name."""
    return any(char in argument for char in " \n;=()'\"")
