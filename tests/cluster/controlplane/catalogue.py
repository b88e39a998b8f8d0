"""The programs: which Go module each is built from, and how old a found one may be."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

MODULES = Path(__file__).parent / "modules"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program and the Go package it is built from."""

    name: str
    module: str  # folder below modules/
    package: str
    asks: tuple[str, ...]  # arguments that make it print its version
    least: Version  # the oldest that does; what the caller names may be older than what is built
    tags: str = ""  # of `go build`, e.g. to leave parts out
    manifests: tuple[str, ...] = ()  # files of its module, paths there, which are needed to run it

    @property
    def built_version(self) -> str:
        """The version that its module pins, e.g. "1.36.3"."""
        return pinned(self.module)[_PINS[self.module]]

    @property
    def source(self) -> str:
        """The Go module that its version is of."""
        return _PINS[self.module]

    @property
    def family(self) -> str:
        """The folder of the cache it lies in, e.g. "controlplane-1.36.3"; of one with code of our own, another one for
        every state of that code."""
        ours = MODULES / self.module / "main.go"
        state = f"-{sha256(ours.read_bytes()).hexdigest()[:8]}" if ours.exists() else ""
        return f"{self.module}-{self.built_version}{state}"


@dataclass(frozen=True, slots=True)
class Release:
    """A Kubernetes release that a control plane can run, and its native gang scheduling."""

    module: str  # of its servers, a folder below modules/
    gang_gates: tuple[str, ...]  # feature gates of all servers
    gang_api: str  # that the API server serves with them, on request


CURRENT = Release("controlplane", ("GenericWorkload", "GangScheduling"), "scheduling.k8s.io/v1alpha2")
"""What control planes run if nothing else is asked for."""
NEWEST = Release("newest", ("GenericWorkload",), "scheduling.k8s.io/v1beta1")
"""The newest release, for what changes with it; etcd and the clients are those of CURRENT."""

_PINS = {
    "controlplane": "k8s.io/kubernetes",
    "newest": "k8s.io/kubernetes",
    "etcd": "go.etcd.io/etcd/server/v3",
    "kwok": "sigs.k8s.io/kwok",
    "helm": "helm.sh/helm/v3",
    "containerd": "github.com/containerd/containerd/v2",
    "coredns": "github.com/coredns/coredns",
    "oldest": "k8s.io/apiextensions-apiserver",
    "jobset": "sigs.k8s.io/jobset",
    "trainer": "github.com/kubeflow/trainer/v2",
}
OLDEST = "muster-oldest-kubernetes"
JOB_SETS = "jobset-controller"
"""The controller of JobSets."""
TRAIN_JOBS = "trainer-controller"
"""The controller of TrainJobs: it needs that of JobSets."""
_TRAINER_KINDS = ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
LEAST_KUBERNETES = (1, 29)  # native sidecars are on by default


def _kubernetes(name: str) -> Program:
    return Program(name, "controlplane", f"k8s.io/kubernetes/cmd/{name}", ("--version",), LEAST_KUBERNETES)


def _containerd(name: str, *asks: str) -> Program:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    return Program(name, "containerd", package, asks, (2, 0), "no_btrfs no_devmapper no_zfs")


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", ("--version",), (3, 5)),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", ("--version",), (0, 8)),
        Program("kubectl", "controlplane", "k8s.io/kubernetes/cmd/kubectl", ("version", "--client"), LEAST_KUBERNETES),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", ("version", "--short"), (3, 14)),
        _kubernetes("kubelet"),
        _containerd("containerd", "--version"),
        _containerd("containerd-shim-runc-v2", "-v"),
        _containerd("ctr", "--version"),
        # With the few plugins that name pods, named as a program of our own: the whole of it takes three times as long.
        Program("muster-coredns", "coredns", "example.invalid/coredns", ("-version",), (1, 11)),
        Program(OLDEST, "oldest", "example.invalid/oldest", ("-version",), (0, 29)),
        Program(
            JOB_SETS,
            "jobset",
            "sigs.k8s.io/jobset",
            ("--version",),
            (0, 12),
            manifests=(
                "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
                "config/components/webhook/manifests.yaml",
            ),
        ),
        Program(
            TRAIN_JOBS,
            "trainer",
            "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            ("--version",),
            (2, 2),
            manifests=(
                *(f"manifests/base/crds/trainer.kubeflow.org_{kind}.yaml" for kind in _TRAINER_KINDS),
                "manifests/base/webhook/manifests.yaml",
            ),
        ),
    )
}
OF_NODES = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "muster-coredns")
OF_CONTROL_PLANE = tuple(name for name in PROGRAMS if name not in (*OF_NODES, OLDEST, JOB_SETS, TRAIN_JOBS))
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def program_of(name: str, release: Release = CURRENT) -> Program:
    """A program as a release runs it: its own servers, and everything else as in any other."""
    found = PROGRAMS[name]
    return replace(found, module=release.module) if name in SERVERS else found


@cache
def pinned(module: str) -> dict[str, str]:
    """What a module's go.mod requires, without the leading "v": {"k8s.io/kubernetes": "1.36.3", ...}."""
    text = (MODULES / module / "go.mod").read_text()
    return dict(re.findall(r"^(?:require )?\s*([\w./-]+) v([\w.+-]+)", text, re.MULTILINE))


def go_needed() -> Version:
    """The newest Go version that a module asks for."""
    texts = [(folder / "go.mod").read_text() for folder in sorted(MODULES.iterdir())]
    return max(version_in(line) for text in texts for line in re.findall(r"^go (.*)$", text, re.MULTILINE))


def version_in(text: str) -> Version:
    """The first version number in a text, e.g. (1, 36, 3); () where there is none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


def written(version: Version) -> str:
    """A version as people write it."""
    return ".".join(str(part) for part in version)
