"""kubectl and Helm as a user runs them, and what `kubectl logs` shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

LIMIT_S = 480


class CommandFailed(Exception):
    """A command ended with another code than 0; the message holds all it printed."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)} ended with {code}\n{output}")
        self.code = code
        self.output = output


def run_client(program: Path, arguments: Sequence[str], kubeconfig: Path, stdin: str = "") -> str:
    """Run it with a kubeconfig; its standard output. CommandFailed where it fails."""
    # A home of its own, so that no cache, plugin or setting of the user's plays a part.
    home = kubeconfig.parent / "home"
    ours = {"HOME": str(home), "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(home / ".kube" / "cache")}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "XDG_", "KUBE"))}
    command = [str(program), *arguments]
    done = subprocess.run(
        command, env=inherited | ours, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise CommandFailed([program.name, *arguments], done.returncode, done.stdout + done.stderr)
    return done.stdout


def write_log(path: Path, text: str) -> None:
    """Write lines in the form in which a container runtime keeps them."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    path.write_text("".join(f"{now} stdout F {line}\n" for line in text.splitlines()))
