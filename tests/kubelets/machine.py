"""Checks whether this machine can run kubelets, and what is missing."""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import struct
from pathlib import Path

from tests.kubelets.layout import API, BRIDGE, HOST, PODS, cni_folder

_COMMANDS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "runc": "runc", "sysctl": "procps"}


def missing() -> list[str]:
    """What prevents this machine from running kubelets, one sentence each."""
    if platform.system() != "Linux":
        return [f"kubelets need Linux, and this is {platform.system()}"]
    if os.geteuid() != 0:
        return ["kubelets need root: they make namespaces, mounts and cgroups"]
    wanted = {package for command, package in _COMMANDS.items() if shutil.which(command) is None}
    if cni_folder() is None:
        wanted.add("containernetworking-plugins")
    if not any(shutil.which(compiler) for compiler in ("cc", "gcc", "g++")):
        wanted.add("g++")
    found = [f"programs are missing: apt-get install {' '.join(sorted(wanted))}"] if wanted else []
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        found.append("/sys/fs/cgroup cannot be written: this is a container without rights on cgroups")
    found += [f"the kernel has no {what}" for what in _missing_kernel_features()]
    return found + [
        f"{user} has {address}, which nodes here would take"
        for user, address in taken(_read("/proc/net/route"), _read("/etc/resolv.conf"))
    ]


def taken(routes: str, resolver: str) -> list[tuple[str, str]]:
    """Routes and DNS servers of this machine (name, address) that overlap with the network of nodes and pods, and would
    be cut off. Read from /proc/net/route and /etc/resolv.conf."""
    ours = [ipaddress.ip_network(f"{start}/16", strict=False) for start in (API, HOST, f"{PODS}.0.0")]
    used = []
    for line in routes.splitlines()[1:]:
        device, destination, *_, mask, _, _, _ = line.split()
        start, bits = (struct.unpack("=I", bytes.fromhex(field))[0] for field in (destination, mask))
        network = ipaddress.ip_network((start, bits.bit_count()))
        if bits and not device.startswith(BRIDGE) and any(one.overlaps(network) for one in ours):
            used.append((f"device {device}", str(network)))
    for line in resolver.splitlines():
        fields = line.split()
        if fields[:1] == ["nameserver"] and any(ipaddress.ip_address(fields[1].split("%")[0]) in one for one in ours):
            used.append(("the name server", fields[1]))
    return used


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def _missing_kernel_features() -> list[str]:
    missing_features = []
    if "overlay" not in Path("/proc/filesystems").read_text() and not _module("overlay"):
        missing_features.append("overlay file system")
    for kind in ("net", "pid", "mnt", "uts", "ipc"):
        if not Path(f"/proc/self/ns/{kind}").exists():
            missing_features.append(f"{kind} namespaces")
    return missing_features


def _module(name: str) -> bool:
    """Whether the kernel can load the module on demand."""
    folder = Path("/lib/modules", platform.release())
    return folder.is_dir() and any(folder.rglob(f"{name}.ko*"))
