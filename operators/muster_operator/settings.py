"""Command-line flags of the operator."""

from __future__ import annotations

import argparse
import json
import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from muster.api.pod_security import PodSecurityLevel
from muster.api.spec import ContainerResources
from muster.errors import InvalidSpec
from muster.kinds.suspended.kinds_file import gate_all, read_kinds
from muster.kinds.suspended.table import KindRow
from muster.kube.async_client import ApiRateLimits
from muster.kube.lease import LeaseTimes
from muster.text import is_count
from muster_operator.cache.cluster_cache import CollectorSettings
from muster_operator.cache.template_bytes import MOST_BYTES
from muster_operator.pod_builder.collector import CollectorSidecarConfig
from muster_operator.visibility.server import VisibilitySettings

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """`public` serves probes, metrics and positions, `private` the snapshot as well."""

    public: str
    private: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the flags. `lease_times` None: no leader election."""

    kubeconfig: str | None
    context: str | None
    namespace: str
    identity: str
    lease_name: str
    lease_times: LeaseTimes | None
    limits: ApiRateLimits
    addresses: ListenAddresses
    priority_class: str
    pod_groups: bool
    dry_run_refresh_s: float
    template_bytes: int
    collectors: CollectorSettings
    progress_interval_s: float
    snapshot_dir: Path
    log_level: str
    visibility: VisibilitySettings = VisibilitySettings()
    usage_retention_days: int = 400
    pod_security: PodSecurityLevel = "privileged"
    kinds: tuple[KindRow, ...] = ()


def parse_flags(argv: Sequence[str]) -> Settings:
    """Parse the flags; exits with a usage message if one is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m muster_operator", description="Runs Muster on a Kubernetes cluster.", allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--kubeconfig",
        metavar="FILE",
        default=os.environ.get("KUBECONFIG") or None,
        help="kubeconfig file (default: $KUBECONFIG, else the pod's service account)",
    )
    add("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    add(
        "--namespace",
        metavar="NAME",
        default=_own_namespace(),
        help="namespace of the Lease and the keys (default: %(default)s)",
    )
    add(
        "--identity",
        metavar="NAME",
        default=f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        help="name of this process in the Lease; must be unique",
    )
    add("--lease-name", metavar="NAME", default="muster-operator", help="default: %(default)s")
    add("--no-lease", action="store_true", help="disable leader election; only where no other operator can run")
    add(
        "--lease-duration-seconds",
        metavar="S",
        type=_positive_number,
        default=15.0,
        help="time without a renewal after which another operator takes over (default: %(default)g)",
    )
    add(
        "--renew-deadline-seconds",
        metavar="S",
        type=_positive_number,
        default=10.0,
        help="time without a renewal after which the leader stops writing (default: %(default)g)",
    )
    add("--retry-period-seconds", metavar="S", type=_positive_number, default=2.0, help="default: %(default)g")
    add(
        "--qps",
        metavar="N",
        type=_positive_number,
        default=300.0,
        help="API requests per second (default: %(default)g)",
    )
    add(
        "--burst",
        metavar="N",
        type=_positive_integer,
        default=500,
        help="burst of API requests beyond that (default: %(default)d)",
    )
    add(
        "--in-flight",
        metavar="N",
        type=_positive_integer,
        default=64,
        help="concurrent API requests (default: %(default)d)",
    )
    add(
        "--listen",
        metavar="HOST:PORT",
        default="0.0.0.0:8080",
        help="address of probes, metrics and positions (default: %(default)s)",
    )
    add(
        "--listen-local",
        metavar="HOST:PORT",
        default="127.0.0.1:8081",
        help="address of these and the snapshot; must be on loopback (default: %(default)s)",
    )
    add(
        "--priority-class",
        metavar="NAME",
        default="",
        help="priority class of all pods; should have preemptionPolicy Never (default: the cluster's)",
    )
    add(
        "--dry-run-interval-seconds",
        metavar="S",
        type=_positive_number,
        default=600.0,
        help="interval of dry runs of the pods of pending jobs (default: %(default)g)",
    )
    add(
        "--namespace-templates-mib",
        metavar="N",
        type=_positive_integer,
        default=MOST_BYTES // 2**20,
        help="limit of the pod templates of unfinished jobs in one namespace, in MiB of JSON (default: %(default)d)",
    )
    add(
        "--pod-groups",
        action="store_true",
        help="create a PodGroup (scheduling.k8s.io; Kubernetes 1.36 or later, off by default) for each gang, so that "
        "kube-scheduler binds all of its pods or none",
    )
    add(
        "--pod-security",
        choices=("privileged", "baseline", "restricted"),
        default="privileged",
        help="podSecurity of root queues that set none: jobs with other pod templates wait (default: %(default)s)",
    )
    add(
        "--snapshot-dir",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("TMPDIR", "/tmp")),
        help="directory to which SIGUSR1 writes the newest snapshot (default: %(default)s)",
    )
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: %(default)s")
    add(
        "--visibility-listen",
        metavar="HOST:PORT",
        default="",
        help="address of the read API for the API server's aggregation layer (default: not served)",
    )
    add(
        "--visibility-tls-dir",
        metavar="DIR",
        type=Path,
        default=VisibilitySettings().tls_folder,
        help="directory with tls.crt and tls.key of that address (default: %(default)s)",
    )
    add(
        "--usage-retention-days",
        metavar="N",
        type=_retention_days,
        default=400,
        help="days for which usage over time is kept in ConfigMaps; 0: it is not recorded (default: %(default)d)",
    )
    add(
        "--queued-kinds",
        metavar="JSON",
        type=_kinds,
        default=(),
        help='kinds of objects that queue by their label muster.dev/queue, such as ["Job"] (default: none)',
    )
    add(
        "--trust-pods",
        action="store_true",
        help="admission policies let only controllers create pods with the label muster.dev/attempt: what pods of a "
        "template have requested before is believed, and Jobs with such a template start without a gate",
    )
    _add_collector_flags(parser)
    flags = parser.parse_args(argv)
    times = LeaseTimes(flags.lease_duration_seconds, flags.renew_deadline_seconds, flags.retry_period_seconds)
    if not min(times.duration_s, times.lease_duration_seconds) > times.renew_deadline_s > times.retry_s:
        parser.error(
            f"--lease-duration-seconds {times.duration_s:g} must be above --renew-deadline-seconds "
            f"{times.renew_deadline_s:g}, "
            f"and that above --retry-period-seconds {times.retry_s:g}"
        )
    addresses = {"--listen": flags.listen, "--listen-local": flags.listen_local}
    if flags.visibility_listen:
        addresses["--visibility-listen"] = flags.visibility_listen
    for flag, address in addresses.items():
        if not is_count(address.rpartition(":")[2]):
            parser.error(f"{flag} must be HOST:PORT, such as 127.0.0.1:8080; got {address!r}")
    if flags.listen_local.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        parser.error(f"--listen-local must be on loopback, such as 127.0.0.1:PORT; got {flags.listen_local!r}")
    return Settings(
        kubeconfig=flags.kubeconfig,
        context=flags.context,
        namespace=flags.namespace,
        identity=flags.identity,
        lease_name=flags.lease_name,
        lease_times=None if flags.no_lease else times,
        limits=ApiRateLimits(flags.in_flight, flags.qps, flags.burst),
        addresses=ListenAddresses(flags.listen, flags.listen_local),
        priority_class=flags.priority_class,
        pod_groups=flags.pod_groups,
        dry_run_refresh_s=flags.dry_run_interval_seconds,
        template_bytes=flags.namespace_templates_mib * 2**20,
        collectors=_collector_settings(flags),
        progress_interval_s=flags.progress_interval_seconds,
        snapshot_dir=flags.snapshot_dir,
        log_level=flags.log_level,
        visibility=VisibilitySettings(flags.visibility_listen, flags.visibility_tls_dir),
        usage_retention_days=flags.usage_retention_days,
        pod_security=flags.pod_security,
        kinds=flags.queued_kinds if flags.trust_pods else gate_all(flags.queued_kinds),
    )  # fmt: skip


def _add_collector_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("collectors: sidecars that upload traces and report progress").add_argument
    add(
        "--collector-image",
        metavar="IMAGE",
        default="",
        help="image of collectors (default: none: stalls are not detected, checkpoints not known)",
    )
    add(
        "--collector-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        default="",
        help="pull policy of that image",
    )
    add(
        "--collector-resources",
        metavar="JSON",
        type=_container_resources,
        default=CollectorSidecarConfig().resources,
        help='such as {"requests": {"cpu": "100m"}}; with requests equal to limits, Guaranteed pods stay Guaranteed',
    )
    add(
        "--collector-all-jobs",
        action="store_true",
        help="add a collector to every pod of every job, so that traces can be requested while the job runs (default: "
        "jobs with a trace, a stall timeout or durable checkpoints)",
    )
    add(
        "--collector-store",
        metavar="URL",
        type=_store_url,
        default="",
        help="store for traces, such as s3://bucket/muster; every job has a folder below it",
    )
    add(
        "--collector-store-secret",
        metavar="NAME",
        default="",
        help="Secret in the job's namespace; its keys are environment variables with the store's credentials",
    )
    add(
        "--heartbeat-interval-seconds",
        metavar="S",
        type=_positive_number,
        default=15.0,
        help="interval of heartbeat requests (default: %(default)g)",
    )
    add(
        "--progress-interval-seconds",
        metavar="S",
        type=_positive_number,
        default=60.0,
        help="minimum interval between updates of a job's progress in its status (default: %(default)g)",
    )


def _collector_settings(flags: argparse.Namespace) -> CollectorSettings:
    config = CollectorSidecarConfig(
        image=flags.collector_image,
        pull_policy=flags.collector_pull_policy,
        resources=flags.collector_resources,
        store=flags.collector_store,
        store_secret=flags.collector_store_secret,
        all_jobs=flags.collector_all_jobs,
    )
    return CollectorSettings(config, flags.heartbeat_interval_seconds)


def _container_resources(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
        ContainerResources.model_validate(document)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be the resources of a container as JSON; got {text!r}: {error}"
        ) from error
    found: dict[str, Any] = document
    return found


def _kinds(text: str) -> tuple[KindRow, ...]:
    try:
        return read_kinds(text)
    except InvalidSpec as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _store_url(text: str) -> str:
    parts = urlsplit(text)
    if text and (not parts.scheme or "$(" in text):
        raise argparse.ArgumentTypeError(f"must be a URL such as s3://bucket/folder; got {text!r}")
    if "@" in parts.netloc:
        raise argparse.ArgumentTypeError("must not contain credentials; use --collector-store-secret")
    return text


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "muster-system"


def _positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return value


def _retention_days(text: str) -> int:
    if not is_count(text) or int(text) > 3650:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 3650; got {text!r}")
    return int(text)


def _positive_integer(text: str) -> int:
    if not is_count(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; got {text!r}")
    return int(text)
