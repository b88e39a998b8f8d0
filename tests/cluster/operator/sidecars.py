"""A stand-in for the kubelet of one pod: its collector runs as a real process, with the command and the environment of
the pod's own manifest, at a loopback address that KWOK gave the pod."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.operator.pools import Pool

Json = dict[str, Any]
COLLECTORS = ("--collector-image", "registry.example.com/trainer:1", "--heartbeat-interval-seconds", "0.3",
              "--progress-interval-seconds", "1")  # fmt: skip
SIDECAR = "muster-collector"
LAST_WORDS = "termination-log"


def any_address() -> str:
    """An address of loopback that is probably unused: all pods have the same port."""
    return f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


def sidecar(pod: Json) -> Json | None:
    """The collector's container of a pod."""
    return next((one for one in pod["spec"].get("initContainers", ()) if one["name"] == SIDECAR), None)


def environment(pool: Pool, pod: Json, container: Json) -> dict[str, str]:
    """What a kubelet would put into the container's environment."""
    found: dict[str, str] = {}
    for one in container["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            found[one["name"]] = pod["status"]["podIP"]
        else:
            found[one["name"]] = expanded(one.get("value", ""), found)
    return found


def mount_token(pool: Pool, pod: Json, folder: Path) -> Path:
    """What a kubelet would mount: the file with the token, here in this folder."""
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "muster-collector-token")
    secret = pool.api.get(f"/api/v1/namespaces/{pool.namespace}/secrets/{volume['secret']['secretName']}")
    path = folder / "token"
    path.write_bytes(base64.b64decode(secret["data"]["token"]))
    return path


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` as Kubernetes has it."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)


@contextmanager
def collecting(pool: Pool, pod: Json, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The collector of a pod runs; `run_dir` stands for the pod's run folder."""
    container = sidecar(pod)
    assert container is not None, "the pod has no collector"
    variables = {**environment(pool, pod, container), "MUSTER_RUN_DIR": str(run_dir)}
    replaced = {  # by what a kubelet would mount
        "--termination-message-path": run_dir / LAST_WORDS,
        "--mount": run_dir,
        "--token-file": mount_token(pool, pod, run_dir),
    }
    named = ((one.partition("=")[0], expanded(one, variables)) for one in container["args"])
    arguments = [f"{name}={replaced[name]}" if name in replaced else whole for name, whole in named]
    command = [sys.executable, *container["command"][1:], *arguments]
    with (run_dir / "collector.log").open("ab") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def listens(pod: Json) -> bool:
    """Whether the collector of a pod accepts connections: its process takes a while to start."""
    container = sidecar(pod)
    assert container is not None
    port = next(one.partition("=")[2] for one in container["args"] if one.startswith("--port="))
    try:
        with socket.create_connection((pod["status"]["podIP"], int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def tell_last_words(pool: Pool, pod: Json, words: str) -> None:
    """What a kubelet would write into the status of a pod whose collector has ended with this message."""
    end = {"exitCode": 0, "message": words}
    status = {
        "name": SIDECAR,
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": end},
    }
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}/status"
    pool.api.patch(path, {"status": {"initContainerStatuses": [status]}})


def heartbeat(run_dir: Path, step: int, **more: Any) -> None:
    """What rank 0 would write."""
    document = {"rank": 0, "world_size": 1, "attempt": 0, "step": step, "at": time.time(), "phase": "train", **more}
    replaced(run_dir / "heartbeats" / "rank-0.json", document)


def checkpoint(run_dir: Path, step: int, at: float) -> None:
    """What the trainer would write once a checkpoint is whole."""
    replaced(run_dir / "checkpoints" / "latest", {"step": step, "attempt": 0, "path": f"step-{step}", "at": at})


def replaced(path: Path, content: Json) -> None:
    """Atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
