"""Programs from their Go modules: one asked of setup-envtest where the network allows, else compiled here.

The environment's own settings for Go (GOPROXY, GOSUMDB, GOFLAGS) hold; no address of a server is written here.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.controlplane.catalogue import MODULES, PROGRAMS, Program, go_needed, version_in, written

SETUP_ENVTEST = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"
DOWNLOADED = ("etcd", "kube-apiserver", "kubectl")  # what setup-envtest brings
PROBE_S, DOWNLOAD_S = 10, 300


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
        """The `go` on PATH. One that is older than the modules ask, but not than 1.21, fetches a newer one itself."""
        needed = written(go_needed())
        path = shutil.which("go")
        if path is None:
            raise NoGo(f"there is no Go toolchain on PATH (needs Go {needed} or later)")
        environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
        has = _go_version(path, environment | {"GOTOOLCHAIN": "local"})
        if has < (1, 21):
            raise NoGo(f"{path} is Go {written(has)}, which cannot fetch a newer one (needs Go {needed} or later)")
        if has < go_needed():
            environment["GOTOOLCHAIN"] = f"go{needed}+auto"
            if _go_version(path, environment) < go_needed():
                raise NoGo(f"{path} is Go {written(has)} and could not fetch Go {needed}")
        return Go(path, environment)

    def run(self, *arguments: str, folder: Path, timeout_s: float | None = None) -> str:
        """Run `go ARGUMENTS` in a folder; what it printed. CalledProcessError with its output where it fails."""
        done = subprocess.run(
            [self.path, *arguments],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        return done.stdout


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
        draft.replace(target)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stdout.splitlines() if not line.startswith("go: downloading")]
        raise BuildFailed(f"`go build {program.package}` failed: {' '.join(lines[-3:])}") from error
    finally:
        draft.unlink(missing_ok=True)
    return time.monotonic() - begun


def download(go: Go, wanted: list[Program], cache: Path, say: Callable[[str], None]) -> list[str]:
    """Let setup-envtest bring what it can into the cache; the names of what came, none where the network says no."""
    wanted = [program for program in wanted if program.name in DOWNLOADED]
    if not wanted:
        return []
    series = ".".join(PROGRAMS["kube-apiserver"].built_version.split(".")[:2]) + ".x!"
    cache.mkdir(parents=True, exist_ok=True)
    tool, came = cache / "setup-envtest", list[str]()
    with tempfile.TemporaryDirectory(prefix="setup-envtest-", dir=cache) as folder:
        try:
            if not tool.exists():
                say("asking setup-envtest for a download ...")
                Go(go.path, go.environment | {"GOBIN": folder}).run("install", SETUP_ENVTEST, folder=cache)
                Path(folder, tool.name).replace(tool)
            _envtest(tool, "list", series, timeout_s=PROBE_S)
            assets = Path(_envtest(tool, "use", series, "--bin-dir", folder, "-p", "path", timeout_s=DOWNLOAD_S))
            for program in wanted:
                target = cache / program.family / "download" / program.name
                target.parent.mkdir(parents=True, exist_ok=True)
                (assets / program.name).replace(target)
                came.append(program.name)
        except (OSError, subprocess.SubprocessError) as error:
            say(f"no download: {_last_line(error)}")
    return came


def _envtest(tool: Path, *arguments: str, timeout_s: float) -> str:
    """What setup-envtest answered."""
    command = [str(tool), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True).stdout.strip()


def _last_line(error: OSError | subprocess.SubprocessError) -> str:
    """What a failed command said last."""
    said = getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)
    return str(said).strip().splitlines()[-1]


def _linker_flags(program: Program) -> list[str]:
    """Without symbols; and what a Kubernetes program says of its version, which is v0.0.0 else."""
    flags = ["-s", "-w"]
    if program.module == "controlplane":
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
