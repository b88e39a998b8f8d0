"""Creates what a cluster needs of the machine itself, and removes all of it when its owner ends.

    python host_setup.py PLAN

PLAN is a JSON file. Leftovers of an earlier cluster are removed; then bridge, network namespaces, cgroups and folders
are created and "ready" is printed. When standard input ends, because the owner closed it or was killed, this process
waits until the nodes are gone and removes everything again. Only one such process runs on a machine at a time. A
network namespace exists as long as a process in it: children of this one, whose process ids follow "ready".

It is run as a file, without the site packages, so that it starts in milliseconds and depends on nothing.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

CGROUPS = "/sys/fs/cgroup"
MOUNT_POINT = "/var/lib/kubelet"  # may be missing on a machine that never was a node
GONE_S = 300


def main(plan_file: str) -> int:
    """Return the exit code."""
    with open(plan_file) as file:
        plan = json.load(file)
    with open(plan["lock"], "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another cluster of kubelets runs on this machine; waiting for its end", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        code = set_up(plan)
    remove_disks(plan)  # slow, and the next cluster need not wait for it
    return code


def set_up(plan: dict[str, Any]) -> int:
    """Create everything, wait for the end of the owner, remove everything; returns the exit code."""
    created = not os.path.isdir(MOUNT_POINT)
    sleepers: list[subprocess.Popen[bytes]] = []
    remove(plan)
    try:
        os.makedirs(MOUNT_POINT, exist_ok=True)
        sleepers += [new_network_namespace() for _ in plan["nodes"]]
        create(plan, [sleeper.pid for sleeper in sleepers])
        print("ready", *(sleeper.pid for sleeper in sleepers), flush=True)
        while os.read(0, 4096):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        print(getattr(error, "stderr", None) or error, file=sys.stderr)
        return 1
    finally:
        remove(plan)
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        if created:
            with contextlib.suppress(OSError):
                os.rmdir(MOUNT_POINT)
    return 0


def new_network_namespace() -> "subprocess.Popen[bytes]":
    """Start a process in a new network namespace, which ends with us; returns once it runs."""

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    ours = os.readlink("/proc/self/ns/net")
    sleeper = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"],
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, no locks
    )
    while os.readlink(f"/proc/{sleeper.pid}/ns/net") == ours:
        if sleeper.poll() is not None:
            raise OSError("unshare --net failed: no network namespaces here")
        time.sleep(0.01)
    return sleeper


def create(plan: dict[str, Any], pids: list[int]) -> None:
    """Create a bridge with the machine's addresses, and for each node a veth pair from the bridge into the namespace of
    its process."""
    bridge = plan["bridge"]
    ip("link", "add", bridge, "type", "bridge")
    for address in plan["addresses"]:
        ip("address", "add", address, "dev", bridge)
    ip("link", "set", bridge, "up")
    for node, pid in zip(plan["nodes"], pids, strict=True):
        ip("link", "add", node["veth"], "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        ip("link", "set", node["veth"], "master", bridge, "up")
        for arguments in ("link set lo up", f"address add {node['address']}/24 dev eth0", "link set eth0 up"):
            ip(*arguments.split(), pid=pid)
        ip("route", "add", "default", "via", plan["host"], pid=pid)
        for other in plan["nodes"]:
            if other is not node:
                ip("route", "add", other["pods"], "via", other["address"], pid=pid)
        run(["nsenter", f"--net=/proc/{pid}/ns/net", "sysctl", "-qw", "net.ipv4.ip_forward=1"])
        ip("route", "add", node["pods"], "via", node["address"], "dev", bridge)
        os.makedirs(node["run"])
        for hierarchy in hierarchies():
            create_cgroup(hierarchy, node["cgroup"])
    for hierarchy in hierarchies():
        lower_cpu_weight(os.path.join(hierarchy, plan["cgroup"]))


def lower_cpu_weight(top: str) -> None:
    """Lower the CPU weight of all nodes' pods to half of one process: the control plane can renew its leases, and pods
    get CPU time beside other programs."""
    for file, least in (("cpu.shares", "512"), ("cpu.weight", "50")):  # cgroup v1, v2; defaults are 1024 and 100
        if os.path.exists(path := os.path.join(top, file)):
            with open(path, "w") as write:
                write.write(least)


def create_cgroup(hierarchy: str, path: str) -> None:
    """Create a cgroup and its parents, with all CPUs and memory nodes, which version 1 does not assign by default."""
    folder, second = hierarchy, is_version_2(hierarchy)
    for name in path.strip("/").split("/"):
        above, folder = folder, os.path.join(folder, name)
        os.makedirs(folder, exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            source, target = os.path.join(above, file), os.path.join(folder, file)
            if os.path.exists(target) and not second:
                with open(source) as read, open(target, "w") as write:
                    write.write(read.read())
        if second:  # a cgroup needs the controllers that its parent enables
            controllers, enabled = (
                os.path.join(above, f"cgroup.{name}") for name in ("controllers", "subtree_control")
            )
            with open(controllers) as read, open(enabled, "w") as write:
                write.write(" ".join(f"+{name}" for name in read.read().split()))


def hierarchies() -> list[str]:
    """Every cgroup hierarchy that nodes use: those of version 1 if there are any, else the one of version 2."""
    return [folder for folder in all_hierarchies() if folder == CGROUPS or not is_version_2(folder)]


def all_hierarchies() -> list[str]:
    """Every mounted hierarchy. Runtimes leave empty cgroups even in unused ones."""
    if is_version_2(CGROUPS):
        return [CGROUPS]
    return [folder for folder in sorted(glob.glob(f"{CGROUPS}/*")) if os.path.ismount(folder)]


def is_version_2(folder: str) -> bool:
    """Whether a hierarchy is of version 2."""
    return os.path.exists(f"{folder}/cgroup.controllers")


def remove(plan: dict[str, Any]) -> None:
    """Remove everything that `create` creates, and what nodes left in it. Missing parts are skipped."""
    until = time.monotonic() + GONE_S
    for hierarchy in all_hierarchies():
        top = os.path.join(hierarchy, plan["cgroup"])
        while os.path.isdir(top) and time.monotonic() < until:
            if not remove_cgroups(top):
                time.sleep(0.1)  # killed processes take a moment to exit
    # Closed connections keep a namespace for a while after its last process; its veth here is removed at once.
    for path in sorted(glob.glob(f"/sys/class/net/{plan['bridge']}n*")):
        ip("link", "delete", os.path.basename(path), check=False)
    ip("link", "delete", plan["bridge"], check=False)
    shutil.rmtree(plan["run"], ignore_errors=True)


def remove_disks(plan: dict[str, Any]) -> None:
    """The nodes' folders, with many thousand files."""
    until = time.monotonic() + GONE_S
    for node in plan["nodes"]:
        while os.path.isdir(node["folder"]) and time.monotonic() < until:
            run(["rm", "-rf", "--one-file-system", node["folder"]], check=False)


def remove_cgroups(top: str) -> bool:
    """Remove a tree of cgroups and kill what still runs there; returns whether it is gone."""
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.procs")) as file:
            for pid in file.read().split():
                os.kill(int(pid), 9)
        try:
            os.rmdir(folder)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
    return True


def ip(*arguments: str, pid: int = 0, check: bool = True) -> None:
    """Run `ip`, in the network namespace of a process if given."""
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid else []
    run([*enter, "ip", *arguments], check=check)


def run(command: list[str], *, check: bool = True) -> None:
    """Run a command. CalledProcessError with its output where it fails."""
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
