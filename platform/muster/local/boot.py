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
from muster.local.capacity import GPU, measure
from muster.local.cluster import LocalCluster
from muster.local.disk import release, reserve
from muster.local.environment import kept
from muster.local.first_objects import ensure_first_objects
from muster.local.home import Home
from muster.local.job_environments import JobEnvironments
from muster.local.log_limits import limit_of_daemon
from muster.local.objects import Objects
from muster.local.processes import boot_id, check_platform
from muster.local.replicas import Replicas
from muster.local.reports import Reports
from muster.local.service import News, Service
from muster.local.shape import HOST_AS_IT_IS, host_node, parse_shape, pretended_nodes
from muster.local.spawning import Host
from muster.local.store import Store, open_store

_SHAPE = "nodes"  # setting


@dataclass(frozen=True, slots=True)
class Parts:
    """A daemon taken apart."""

    store: Store
    replicas: Replicas
    cluster: LocalCluster
    service: Service
    reports: Reports
    news: News
    shape: str


def assemble(home: Home, shape: str | None, boot_id_file: Path | None) -> Parts:
    """Everything but the loop and the socket. `shape` None: as last time. Raises `MusterError`."""
    check_platform()
    boot = boot_id(boot_id_file)
    store = _opened(home)
    shape = _remembered_shape(store, shape)
    nodes, devices = _nodes(shape)
    ensure_first_objects(store, nodes, time.time())
    environment = kept(os.environ, str(Path(sys.executable).parent))
    host = Host(
        home=home, boot_id=boot, environment=environment, umask=_umask(),
        collector=tuple(shlex.split(os.environ.get("MUSTER_COLLECTOR") or "")) or _COLLECTOR,
        log_limit=limit_of_daemon(os.environ),
    )  # fmt: skip
    replicas = Replicas(host, store, devices)
    cluster = LocalCluster(home, store, replicas, nodes)
    replicas.end_orphans()
    environments = JobEnvironments(home)
    environments.forget_all_but(store.jobs)
    objects = Objects(store, nodes, environment, environments, time.time)
    news = News()
    service = Service(home, store, cluster, objects, news)
    reports = Reports(store, cluster.run_dir, environment)
    return Parts(store, replicas, cluster, service, reports, news, shape)


def _opened(home: Home) -> Store:
    """The database; on a full disk with the help of what was set aside. Raises `ClusterError`."""
    try:
        store = open_store(home.database)
    except ClusterError as error:
        if error.reason == "NewerDatabase" or not release(home.reserve):
            raise
        store = open_store(home.database)
    store.set_space_aside()
    reserve(home.reserve)
    return store


_COLLECTOR = (sys.executable, "-m", "muster.tracing.collector")


def _remembered_shape(store: Store, wanted: str | None) -> str:
    """The shape to show; written down for the next start. Raises `Refused` when jobs are on the present nodes."""
    before = store.settings.get(_SHAPE, "")
    after = before if wanted is None else "" if wanted == HOST_AS_IT_IS else wanted
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
        store.set(_SHAPE, after)
    return after


def _nodes(shape: str) -> tuple[tuple[NodeView, ...], dict[str, tuple[str, ...]]]:
    """The nodes, and what CUDA_VISIBLE_DEVICES calls the GPUs of each."""
    if not shape:
        capacity = measure()
        node = host_node(capacity)
        return (node,), {node.name: capacity.gpus}
    nodes = pretended_nodes(parse_shape(shape))
    return nodes, {node.name: tuple(str(number) for number in range(node.allocatable.get(GPU))) for node in nodes}


def _umask() -> int:
    """The umask that we were started with."""
    mask = os.umask(0o077)
    return mask
