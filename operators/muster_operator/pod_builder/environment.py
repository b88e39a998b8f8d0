"""The variables that docs/run-folder.md promises to every container of a pod."""

from __future__ import annotations

from muster.api import spec
from muster.cluster import CreatePod
from muster_operator.pod_builder.names import host_name, rendezvous_port, service_name


def pod_environment(
    job: spec.TrainingJob, pod: CreatePod, run_dir: str, *, single_pod: bool, on_host_network: bool
) -> dict[str, str]:
    """Variables by name. `single_pod`: the job has one pod in all, which needs no Service for rendezvous."""
    meta = job.metadata
    role = next(role for role in job.spec.roles if role.name == pod.role)
    host = "127.0.0.1" if single_pod else f"{host_name(pod.role, 0)}.{service_name(meta.name, meta.uid)}"
    port = rendezvous_port(meta.uid, pod.role, pod.attempt, on_host_network=on_host_network)
    variables = {
        "MUSTER_JOB": meta.name,
        "MUSTER_NAMESPACE": meta.namespace or "default",
        "MUSTER_JOB_UID": meta.uid,
        "MUSTER_ROLE": pod.role,
        "MUSTER_REPLICA": str(pod.index),
        "MUSTER_REPLICAS": str(pod.replicas),
        "MUSTER_ATTEMPT": str(pod.attempt),
        "MUSTER_RUN_DIR": run_dir,
        "MUSTER_RANK0_HOST": host,
        "MUSTER_RANK0_PORT": str(port),
        "MUSTER_GRACE_SECONDS": str(role.template.spec.termination_grace_period_seconds),
    }
    trace = job.spec.trace
    if trace is not None:
        variables["MUSTER_TRACE_STEPS"] = f"{trace.start_step}:{trace.start_step + trace.steps}"
        variables["MUSTER_TRACE_RANKS"] = ",".join(str(rank) for rank in trace.ranks)
    return variables
