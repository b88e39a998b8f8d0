"""Mounts this machine's Python with torch read-only into the pods of jobs, instead of a 5 GB image.

A mutating admission policy of the cluster adds the mounts to pods of jobs, so that jobs are submitted as on any
cluster. The operator's pods and the collectors use their images only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
NAME = "environment-of-the-tests"
_CACHE = "/muster/cache"


def policy(cache: Path) -> list[Json]:
    """The policy and its binding. `cache`: a folder of this machine in which pods may write compiled kernels."""
    environment = Path(sys.prefix)
    # /usr: the compiler for torch.compile, and the libraries of this Python.
    shown = {str(path) for path in (Path("/usr"), Path(sys.base_prefix), environment, ROOT)}
    # Folders below another mounted folder are included in it.
    outer = sorted(path for path in shown if not any(path.startswith(f"{other}/") for other in shown))
    volumes = [f'Object.spec.volumes{{name: "host-{at}", hostPath: {_path(path)}}}' for at, path in enumerate(outer)]
    mounts = [_mount(f"host-{at}", path, read_only=True) for at, path in enumerate(outer)]
    volumes.append(f'Object.spec.volumes{{name: "cache", hostPath: {_path(str(cache))}}}')
    mounts.append(_mount("cache", _CACHE, read_only=False))
    if any(path.startswith("/root/") for path in outer):  # which images make readable for root only
        volumes.append('Object.spec.volumes{name: "root", emptyDir: Object.spec.volumes.emptyDir{}}')
        mounts.append(_mount("root", "/root", read_only=False))
    given = {
        "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin",
        "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/inductor",
        "MUSTER_CACHE_DIR": _CACHE,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else each rank starts more processes that import torch
    }
    env = [f"Object.spec.containers.env{{name: {json.dumps(k)}, value: {json.dumps(v)}}}" for k, v in given.items()]
    container = f"Object.spec.containers{{name: c.name, volumeMounts: [{', '.join(mounts)}], env: [{', '.join(env)}]}}"
    trainers = 'object.spec.containers.filter(c, c.name == "trainer")'
    spec = f"Object.spec{{volumes: [{', '.join(volumes)}], containers: {trainers}.map(c, {container})}}"
    api, jobs = (
        "admissionregistration.k8s.io/v1",
        {"matchExpressions": [{"key": "muster.dev/job", "operator": "Exists"}]},
    )
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    body = {
        "matchConstraints": {"resourceRules": [pods], "objectSelector": jobs},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": f"Object{{spec: {spec}}}"}}
        ],
    }
    return [
        {"apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": body},
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME},
        },
    ]


def _path(path: str) -> str:
    return f"Object.spec.volumes.hostPath{{path: {json.dumps(path)}}}"


def _mount(name: str, path: str, *, read_only: bool) -> str:
    written = "true" if read_only else "false"
    head = "Object.spec.containers.volumeMounts"
    return f"{head}{{name: {json.dumps(name)}, mountPath: {json.dumps(path)}, readOnly: {written}}}"
