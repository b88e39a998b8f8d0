"""TorchX schedulers: convert an AppDef into a TrainingJob, and a TrainingJob into TorchX's status types.

`muster_local` runs jobs on this host, `muster` in a Kubernetes cluster. User documentation: docs/tasks/torchx.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.torchx.kubernetes import KubernetesScheduler
    from muster.torchx.local import LocalScheduler


def create_local_scheduler(session_name: str, **parameters: object) -> LocalScheduler:
    """The factory that TorchX looks up as `muster_local`.

    TorchX passes the parameters of `get_runner` and of TORCHX_* variables to all factories; used here: `muster_home`.
    """
    from muster.torchx.local import LocalScheduler

    home = parameters.get("muster_home")
    return LocalScheduler(session_name, home=None if home is None else str(home))


def create_scheduler(session_name: str, **parameters: object) -> KubernetesScheduler:
    """The factory that TorchX looks up as `muster`; used parameters: `muster_kubeconfig` and `muster_context`."""
    from muster.kube.config import KubeContext
    from muster.torchx.kubernetes import KubernetesScheduler

    kubeconfig, context = (parameters.get(name) for name in ("muster_kubeconfig", "muster_context"))
    if kubeconfig is None and context is None:
        return KubernetesScheduler(session_name)
    texts = (None if value is None else str(value) for value in (kubeconfig, context))
    return KubernetesScheduler(session_name, KubeContext(*texts))
