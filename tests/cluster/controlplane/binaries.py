"""Where each program comes from: built from its Go module, once per user, or the folder that KUBEBUILDER_ASSETS names.

Programs on PATH are not taken, and nothing is downloaded but modules, which are checked against the committed go.sum.
Each program is looked for on its own, so a folder with kubectl alone leaves the rest to be built. What was built lies
in a cache outside the repository, one folder per version; a lock lets one run fill it while others wait.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tests.cluster.controlplane import building
from tests.cluster.controlplane.catalogue import (
    CURRENT,
    OF_CONTROL_PLANE,
    PROGRAMS,
    SERVERS,
    Program,
    Release,
    Version,
    program_of,
    version_in,
    written,
)

Say = Callable[[str], None]


class Unavailable(Exception):
    """There is no way to get a program; the message is one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A program that is there, and where it came from."""

    name: str
    path: Path
    source: str
    version: Version


def say_on_stderr(line: str) -> None:
    """Print a line of progress at once."""
    print(f"control plane: {line}", file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where built programs lie, for this system and processor."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "muster" / "kube" / f"{platform.system().lower()}-{building.processor()}"


def ensure(
    names: Iterable[str] = OF_CONTROL_PLANE, say: Say = say_on_stderr, *, release: Release = CURRENT
) -> dict[str, Binary]:
    """Find the programs of a release, and build those that are missing. Unavailable where that is impossible.

    KUBEBUILDER_ASSETS holds servers of CURRENT only.
    """
    wanted = [program_of(name, release) for name in names]
    found = installed([one for one in wanted if one == PROGRAMS[one.name]], say)
    cached = {one.name: _cached(one) for one in wanted if one.name not in found}
    found |= {name: binary for name, binary in cached.items() if binary}
    missing = [one for one in wanted if one.name not in found]
    if missing:
        with _alone(cache_folder(), say):
            found |= _build(missing, say)
    return {one.name: found[one.name] for one in wanted}


def installed(wanted: Iterable[Program], say: Say = say_on_stderr) -> dict[str, Binary]:
    """The programs in the folder that KUBEBUILDER_ASSETS names, as far as they are new enough.

    The three servers have to be of one minor version: those that differ from the API server's are left out, and
    where the API server itself is missing or alone, those that differ from what would be built beside them.
    """
    found = {}
    for program in wanted:
        path = _named(program.name)
        if path is None:
            continue
        version = version_in(_answer([str(path), *program.asks]))
        if version[:2] >= program.least:
            found[program.name] = Binary(program.name, path, "KUBEBUILDER_ASSETS", version)
        else:
            say(f"{path} is {written(version) or 'of no known version'}; needs {written(program.least)} or later")
    minors = {found[name].version[:2] for name in SERVERS if name in found}
    whole = all(name in found for name in SERVERS if PROGRAMS[name] in wanted)
    if not whole or len(minors) > 1:
        for name in SERVERS:
            built = version_in(PROGRAMS[name].built_version)
            if name in found and found[name].version[:2] != built[:2]:
                say(f"{found[name].path} is {written(found[name].version)}; the others will be {written(built)}")
                del found[name]
    return found


def _named(name: str) -> Path | None:
    """The program in the folder that the caller names, if it is there."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(assets, name).absolute() if assets and os.access(Path(assets, name), os.X_OK) else None


def _cached(program: Program) -> Binary | None:
    """The program from the cache. Files appear there by a rename, so what is there is whole."""
    path = cache_folder() / program.family / "built" / program.name
    if not os.access(path, os.X_OK):
        return None
    return Binary(program.name, path, "cache (built)", version_in(program.built_version))


def _build(missing: list[Program], say: Say) -> dict[str, Binary]:
    """Build what is missing. Another run may have done so while we waited."""
    found = {program.name: binary for program in missing if (binary := _cached(program))}
    missing = [program for program in missing if program.name not in found]
    if not missing:
        return found
    names = ", ".join(program.name for program in missing)
    try:
        go = building.Go.find()
    except building.NoGo as error:
        raise Unavailable(
            f"The tests of the cluster need {names}, which are not in a folder that KUBEBUILDER_ASSETS names, and "
            f"cannot be built: {error}; MUSTER_SKIP_CLUSTER=1 leaves these tests out."
        ) from None
    say(f"missing: {names}; they will lie in {cache_folder()}")
    for number, program in enumerate(missing, 1):
        say(f"building {program.name} {program.built_version} from its Go module ({number} of {len(missing)}) ...")
        try:
            seconds = building.build(go, program, cache_folder() / program.family / "built" / program.name)
        except building.BuildFailed as error:
            raise Unavailable(
                f"The tests of the cluster need {program.name}, and {error}; MUSTER_SKIP_CLUSTER=1 leaves them out."
            ) from None
        say(f"built {program.name} in {seconds:.0f} s")
        binary = _cached(program)
        assert binary is not None
        found[program.name] = binary
    return found


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """One run at a time fills the cache; the lock is given up when its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another run fills {folder}; waiting for it ...")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _answer(command: list[str]) -> str:
    """What a program prints about itself; "" where it cannot."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
