"""Pod templates whose run folder is in a volume."""

from __future__ import annotations

from typing import Any

from tests.operator.objects import template

CLAIM = {"name": "muster-run", "persistentVolumeClaim": {"claimName": "runs"}}


def kept(**of_spec: Any) -> dict[str, Any]:
    return template(volumes=[CLAIM], **of_spec)


def elsewhere(run_dir: Any, *mounts: dict[str, Any], volumes: Any = ()) -> dict[str, Any]:
    wanted = template(volumes=list(volumes))
    wanted["spec"]["containers"][0] |= {
        "env": [{"name": "MUSTER_RUN_DIR", **({"value": run_dir} if isinstance(run_dir, str) else run_dir)}],
        "volumeMounts": list(mounts),
    }
    return wanted
