"""The pause image, which holds a pod's namespaces: one static program that waits."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.cluster.controlplane.binaries import Unavailable
from tests.kubelets.layout import PAUSE

_SOURCE = r"""
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def write(archive: Path) -> Path:
    """Compile the program and write an image for `ctr images import`. Unavailable without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        raise Unavailable("Pods need a small program that is compiled here: apt-get install g++")
    program = archive.with_suffix(".program")
    command = [compiler, "-xc", "-Os", "-static", "-s", "-o", str(program), "-"]
    done = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"Pods need a small program, which {compiler} cannot compile: {done.stderr[-500:]}")
    layer = _tar({"pause": program.read_bytes()})
    program.unlink()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]).encode()
    archive.write_bytes(_tar({"layer.tar": layer, "config.json": config, "manifest.json": manifest}))
    return archive


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()
