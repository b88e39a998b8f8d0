"""Each program is found on its own: in the folder that KUBEBUILDER_ASSETS names, in the cache, or built, once.

The programs here are shell scripts that only tell a version, and so is `go`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from tests.cluster.controlplane.binaries import Unavailable, cache_folder, ensure, installed
from tests.cluster.controlplane.catalogue import MODULES, PROGRAMS, go_needed, written

GO = """
case "$1" in
env) echo "$GO_VERSION" ;;
build)
  echo "$GOTOOLCHAIN ${{11}}" >> "{log}"
  {build}
  ;;
esac
"""
WRITE = 'while [ "$1" != -o ]; do shift; done; echo "#!/bin/sh" > "$2"; /bin/chmod +x "$2"'


class Machine:
    """A machine with exactly the programs that a test puts on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.assets, self.builds = folder / "bin", folder / "assets", folder / "builds"
        self.printed: list[str] = []
        self.bin.mkdir()
        self._set = monkeypatch.setenv
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
        monkeypatch.delenv("GOTOOLCHAIN", raising=False)

    def has(self, name: str, version: str, folder: Path | None = None) -> Path:
        return script(folder or self.bin, name, f"echo {name} v{version}")

    def has_assets(self, name: str, version: str) -> Path:
        self._set("KUBEBUILDER_ASSETS", str(self.assets))
        return self.has(name, version, self.assets)

    def has_go(self, version: str = "1.99.0", build: str = WRITE) -> None:
        self._set("GO_VERSION", f"go{version}")
        script(self.bin, "go", GO.format(log=self.builds, build=build))

    def ensure(self, *names: str) -> dict[str, str]:
        """Where each program came from."""
        return {name: binary.source for name, binary in ensure(names, self.printed.append).items()}

    def installed(self, *names: str) -> dict[str, str]:
        found = installed([PROGRAMS[name] for name in names], self.printed.append)
        return {name: str(binary.path) for name, binary in found.items()}

    def built(self) -> int:
        return len(self.builds.read_text().splitlines()) if self.builds.exists() else 0


def script(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_program_on_path_is_not_used(machine: Machine) -> None:
    machine.has("kubectl", "1.36.3")
    assert machine.installed("kubectl") == {}
    machine.has_go()
    assert machine.ensure("kubectl") == {"kubectl": "cache (built)"}


def test_the_folder_that_the_caller_names_is_used(machine: Machine) -> None:
    path = machine.has_assets("kubectl", "1.30.0")
    assert machine.installed("kubectl") == {"kubectl": str(path)}


def test_only_modules_are_downloaded_and_an_earlier_download_is_not_used(machine: Machine) -> None:
    machine.has_go()
    earlier = cache_folder() / PROGRAMS["etcd"].family / "download"
    earlier.mkdir(parents=True)
    script(earlier, "etcd", "echo etcd v3.6.8")
    assert machine.ensure("etcd", "kube-apiserver") == {"etcd": "cache (built)", "kube-apiserver": "cache (built)"}
    assert machine.built() == 2  # any other verb than env and build would have failed


def test_every_build_reads_go_sum_and_may_not_change_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    machine.has_go(build=f'echo "$@" > "{machine.builds}.flags"; {WRITE}')
    machine.ensure("etcd")
    assert " -mod=readonly " in Path(f"{machine.builds}.flags").read_text()
    assert {folder.name for folder in MODULES.iterdir() if not (folder / "go.sum").exists()} == set()


def test_a_program_that_is_too_old_is_skipped_and_reported(machine: Machine) -> None:
    machine.has_assets("etcd", "3.4.23")
    assert machine.installed("etcd") == {}
    assert machine.printed == [f"{machine.assets / 'etcd'} is 3.4.23; needs 3.5 or later"]


def test_a_program_that_prints_no_version_is_skipped(machine: Machine) -> None:
    machine.has_assets("kubectl", "")
    script(machine.assets, "kubectl", "exit 3")
    assert machine.installed("kubectl") == {}


def test_servers_of_two_minor_versions_are_not_mixed(machine: Machine) -> None:
    machine.has_assets("kube-apiserver", "1.31.0")
    machine.has_assets("kube-scheduler", "1.31.0")
    servers = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    assert machine.installed(*servers) == {}
    path = machine.has_assets("kube-controller-manager", "1.31.2")
    assert machine.installed(*servers)["kube-controller-manager"] == str(path)


def test_what_is_missing_is_built_once(machine: Machine) -> None:
    machine.has_go()
    path = machine.has_assets("kubectl", "1.33.0")
    assert machine.ensure("kubectl", "helm", "etcd") == {
        "kubectl": "KUBEBUILDER_ASSETS",
        "helm": "cache (built)",
        "etcd": "cache (built)",
    }
    assert os.access(path, os.X_OK)
    assert machine.built() == 2
    machine.printed.clear()
    assert machine.ensure("kubectl", "helm", "etcd")["etcd"] == "cache (built)"
    assert (machine.built(), machine.printed) == (2, [])


@pytest.mark.parametrize("version", ["", "1.19.8"])
def test_without_a_go_that_can_fetch_a_newer_one_the_pinned_one_is_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Here it cannot be: there is no shell on PATH. The error names the remedy."""
    if version:
        machine.has_go(version)
    with pytest.raises(Unavailable) as error:
        machine.ensure("helm", "kwok")
    assert str(error.value).startswith(
        "The tests of the cluster need helm, kwok, which are not in a folder that KUBEBUILDER_ASSETS names, and cannot "
        "be built: there is no Go 1.21 or later on PATH, and the pinned one could not be installed: "
    )
    assert str(error.value).endswith("; MUSTER_SKIP_CLUSTER=1 leaves these tests out.")
    script(machine.bin, "bash", 'echo "set-up: $*" >&2; exit 1')
    with pytest.raises(Unavailable, match=r"could not be installed: set-up: \S*/tools/environment.sh .cache/go go;"):
        machine.ensure("helm")


def test_an_older_go_fetches_the_one_that_is_needed(machine: Machine) -> None:
    needed = written(go_needed())
    machine.has_go()
    go = machine.bin / "go"
    tells = f'if [ "$GOTOOLCHAIN" = local ]; then GO_VERSION=go1.24.4; else GO_VERSION=go{needed}; fi'
    go.write_text(go.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{tells}\n"))
    assert machine.ensure("helm") == {"helm": "cache (built)"}
    assert machine.builds.read_text().startswith(f"go{needed}+auto ")


def test_a_failed_build_leaves_no_file_and_shows_its_output(machine: Machine) -> None:
    machine.has_go(build=f'{WRITE}; echo "module lookup disabled"; exit 1')
    with pytest.raises(Unavailable, match=r"`go build .*helm` failed: module lookup disabled"):
        machine.ensure("helm")
    assert [path.name for path in cache_folder().rglob("*helm*") if path.is_file()] == []


def test_a_run_waits_for_another_build_and_uses_its_result(machine: Machine) -> None:
    machine.has_go()
    found: list[dict[str, str]] = []
    cache_folder().mkdir(parents=True)
    with FileLock(cache_folder() / "lock"):
        other = threading.Thread(target=lambda: found.append(machine.ensure("helm")))
        other.start()
        while not any("waiting" in line for line in machine.printed):
            assert other.is_alive()
        script_folder = cache_folder() / PROGRAMS["helm"].family / "built"
        script_folder.mkdir(parents=True)
        script(script_folder, "helm", "")
    other.join()
    assert found == [{"helm": "cache (built)"}]
    assert machine.built() == 0
