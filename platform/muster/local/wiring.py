"""How the parts of the daemon are put together, in the order in which they need each other."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from muster.cluster import NodeView
from muster.errors import ClusterError, Refused
from muster.lifecycle import is_admitted, is_finished
from muster.local.capacity import GPU, measure_capacity
from muster.local.cluster import LocalCluster
from muster.local.defaults import ensure_default_objects
from muster.local.disk import release_space, reserve_space
from muster.local.environment import allowed_environment
from muster.local.home import Home
from muster.local.job_environments import JobEnvironmentStore
from muster.local.launcher import LaunchContext
from muster.local.log_limits import default_log_limit
from muster.local.objects import ObjectRegistry
from muster.local.pod_supervisor import PodSupervisor
from muster.local.processes import boot_id, check_platform
from muster.local.reports import ReportBuilder
from muster.local.service import ChangeNotifier, DaemonService
from muster.local.store import SqliteStore, open_store
from muster.local.virtual_nodes import HOST_SHAPE, host_node, parse_shape, virtual_nodes

_SHAPE_SETTING = "nodes"  # setting


@dataclass(frozen=True, slots=True)
class DaemonComponents:
    """A daemon taken apart."""

    store: SqliteStore
    supervisor: PodSupervisor
    cluster: LocalCluster
    service: DaemonService
    reports: ReportBuilder
    notifier: ChangeNotifier
    shape: str


def assemble(home: Home, shape: str | None, boot_id_file: Path | None) -> DaemonComponents:
    """Everything but the loop and the socket. `shape` None: as last time. Raises `MusterError`."""
    check_platform()
    boot = boot_id(boot_id_file)
    store = _open_database(home)
    shape = _resolve_shape(store, shape)
    nodes, devices = _nodes(shape)
    ensure_default_objects(store, nodes, time.time())
    environment = allowed_environment(os.environ, str(Path(sys.executable).parent))
    host = LaunchContext(
        home=home, boot_id=boot, environment=environment, umask=_umask(),
        collector=tuple(shlex.split(os.environ.get("MUSTER_COLLECTOR") or "")) or _DEFAULT_COLLECTOR,
        log_limit=default_log_limit(os.environ),
    )  # fmt: skip
    replicas = PodSupervisor(host, store, devices)
    cluster = LocalCluster(home, store, replicas, nodes)
    replicas.kill_orphans()
    environments = JobEnvironmentStore(home)
    environments.delete_all_except(store.jobs)
    objects = ObjectRegistry(store, nodes, environment, environments, time.time)
    news = ChangeNotifier()
    service = DaemonService(home, store, cluster, objects, news)
    reports = ReportBuilder(store, cluster.run_dir, environment)
    return DaemonComponents(store, replicas, cluster, service, reports, news, shape)


def _open_database(home: Home) -> SqliteStore:
    """The database; on a full disk with the help of what was set aside. Raises `ClusterError`."""
    try:
        store = open_store(home.database)
    except ClusterError as error:
        if error.reason == "NewerDatabase" or not release_space(home.reserve_file):
            raise
        store = open_store(home.database)
    store.reserve_space()
    reserve_space(home.reserve_file)
    return store


_DEFAULT_COLLECTOR = (sys.executable, "-m", "muster.tracing.collector")


def _resolve_shape(store: SqliteStore, wanted: str | None) -> str:
    """The shape to show; written down for the next start. Raises `Refused` when jobs are on the present nodes."""
    before = store.settings.get(_SHAPE_SETTING, "")
    after = before if wanted is None else "" if wanted == HOST_SHAPE else wanted
    if after == before:
        return before
    if after:
        parse_shape(after)
    running = [
        job.metadata.name for job in store.jobs.values() if is_admitted(job.status) and not is_finished(job.status)
    ]
    if running:
        raise Refused(
            f"--nodes {wanted}: jobs run on the present nodes ({', '.join(sorted(running)[:8])}); let them end first",
            field="nodes",
            reason="JobsRunning",
        )
    with store.transaction():
        store.put_setting(_SHAPE_SETTING, after)
    return after


def _nodes(shape: str) -> tuple[tuple[NodeView, ...], dict[str, tuple[str, ...]]]:
    """The nodes, and what CUDA_VISIBLE_DEVICES calls the GPUs of each."""
    if not shape:
        capacity = measure_capacity()
        node = host_node(capacity)
        return (node,), {node.name: capacity.gpus}
    nodes = virtual_nodes(parse_shape(shape))
    return nodes, {node.name: tuple(str(number) for number in range(node.allocatable.get(GPU))) for node in nodes}


def _umask() -> int:
    """The umask that we were started with."""
    mask = os.umask(0o077)
    return mask
