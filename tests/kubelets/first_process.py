"""The first process of a node: what an init system would be on a machine of its own.

    python first_process.py PLAN

It is started in fresh namespaces for processes, mounts and the host name, and in the node's network. It gives the node
folders of its own where programs expect fixed paths, starts containerd, loads the images, starts the kubelet, and ends
when either ends; with it ends every process on the node.

It is run as a file, without the site packages.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

MS_BIND = 4096
# Kernel settings that a kubelet requires. It sees these values in place of the machine's own.
TUNED = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
LIMIT_S = 600


def main(plan_file: str) -> int:
    """Return the exit code."""
    with open(plan_file) as file:
        plan = json.load(file)
    socket.sethostname(plan["name"])
    own_folders(plan)
    containerd = start(plan, "containerd")
    until = time.monotonic() + LIMIT_S
    while subprocess.run([*plan["ctr"], "version"], capture_output=True, check=False).returncode != 0:
        if containerd.poll() is not None or time.monotonic() > until:
            print("containerd did not start; see containerd.log", file=sys.stderr)
            return 1
        time.sleep(0.1)
    for archive in plan["images"]:
        subprocess.run([*plan["ctr"], "images", "import", archive], stdout=subprocess.DEVNULL, check=True)
    kubelet = start(plan, "kubelet")
    while True:
        pid, status = os.wait()  # also reaps orphans
        for name, program in (("containerd", containerd), ("kubelet", kubelet)):
            if pid == program.pid:
                print(f"{name} ended with {os.waitstatus_to_exitcode(status)}; see its log", file=sys.stderr)
                return 1


def own_folders(plan: dict[str, Any]) -> None:
    """Mount the node's own folders at /run, /var/log and /var/lib/kubelet. /run is empty, as after a boot."""
    disk = plan["folder"]
    tuned = os.path.join(disk, "sysctl")
    for name in ("log", "kubelet", "containerd", "sysctl", "lease"):
        os.makedirs(os.path.join(disk, name), exist_ok=True)
    shutil.rmtree(plan["run"], ignore_errors=True)
    os.makedirs(plan["run"])
    for number, (path, value) in enumerate(TUNED.items()):
        file = os.path.join(tuned, str(number))
        with open(file, "w") as out:
            out.write(f"{value}\n")
        if os.path.exists(f"/proc/sys/{path}"):
            bind(file, f"/proc/sys/{path}")
    bind(os.path.join(disk, "log"), "/var/log")
    bind(os.path.join(disk, "kubelet"), "/var/lib/kubelet")
    bind(plan["run"], "/run")


def bind(source: str, target: str) -> None:
    """Bind-mount a folder or file, for this node only."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(source.encode(), target.encode(), None, MS_BIND, None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def start(plan: dict[str, Any], name: str) -> subprocess.Popen[bytes]:
    """Start a program with its log beside the node's folder."""
    with open(f"{plan['logs']}-{name}.log", "ab") as log:
        command, path = plan[name], f"{plan['path']}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": plan["folder"]}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(main(*sys.argv[1:]))
