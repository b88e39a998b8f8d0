"""Builds the parts of the daemon in the order in which they depend on each other, and its default objects."""

from __future__ import annotations

import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from muster.api import spec
from muster.cluster import NodeView
from muster.errors import ClusterError, Refused
from muster.lifecycle import is_admitted, is_finished
from muster.local.cluster import LocalCluster
from muster.local.control_loop import DaemonComponents
from muster.local.environment import JobEnvironmentStore, allowed_environment
from muster.local.home import Home, release_space, reserve_space
from muster.local.launcher import LaunchContext, default_log_limit
from muster.local.nodes import (
    BLOCK_LABEL,
    GPU,
    HOST_SHAPE,
    HOSTNAME_LABEL,
    LOCAL_LABEL,
    RACK_LABEL,
    host_node,
    measure_capacity,
    parse_shape,
    virtual_nodes,
)
from muster.local.objects import ObjectRegistry
from muster.local.pod_supervisor import PodSupervisor
from muster.local.processes import boot_id, check_platform
from muster.local.reports import ReportBuilder
from muster.local.service import ChangeNotifier, DaemonService
from muster.local.store import SqliteStore, open_store

DEFAULT_FLAVOR, DEFAULT_QUEUE = "local", "default"
_SHAPE_SETTING, _DEFAULT_QUEUE_SETTING = "nodes", "default_queue"
_DEFAULT_COLLECTOR = (sys.executable, "-m", "muster.tracing.collector")


def assemble(home: Home, shape: str | None, boot_id_file: Path | None) -> DaemonComponents:
    """All parts except the loop and the server; `shape` None: that of the last start. Raises `MusterError`."""
    check_platform()
    boot = boot_id(boot_id_file)
    store = _open_database(home)
    shape = _resolve_shape(store, shape)
    nodes, devices = _nodes(shape)
    ensure_default_objects(store, nodes, time.time())
    environment = allowed_environment(os.environ, str(Path(sys.executable).parent))
    context = LaunchContext(
        home=home, boot_id=boot, environment=environment, umask=_umask(),
        collector=tuple(shlex.split(os.environ.get("MUSTER_COLLECTOR") or "")) or _DEFAULT_COLLECTOR,
        log_limit=default_log_limit(os.environ),
    )  # fmt: skip
    supervisor = PodSupervisor(context, store, devices)
    cluster = LocalCluster(home, store, supervisor, nodes)
    supervisor.kill_orphans()
    environments = JobEnvironmentStore(home)
    environments.delete_all_except(store.jobs)
    objects = ObjectRegistry(store, nodes, environment, environments, time.time)
    notifier = ChangeNotifier()
    service = DaemonService(home, store, cluster, objects, notifier)
    reports = ReportBuilder(store, cluster.run_dir, environment)
    return DaemonComponents(store, supervisor, cluster, service, reports, notifier, shape)


def _open_database(home: Home) -> SqliteStore:
    """The database; on a full disk the reserved space is released to open it. Raises `ClusterError`."""
    try:
        store = open_store(home.database)
    except ClusterError as error:
        if error.reason == "NewerDatabase" or not release_space(home.reserve_file):
            raise
        store = open_store(home.database)
    store.reserve_space()
    reserve_space(home.reserve_file)
    return store


def _resolve_shape(store: SqliteStore, requested: str | None) -> str:
    """The shape of the nodes, stored for the next start; empty for the host. Raises `Refused` JobsRunning if it changes
    while jobs run."""
    before = store.settings.get(_SHAPE_SETTING, "")
    after = before if requested is None else "" if requested == HOST_SHAPE else requested
    if after == before:
        return before
    if after:
        parse_shape(after)
    running = [
        job.metadata.name for job in store.jobs.values() if is_admitted(job.status) and not is_finished(job.status)
    ]
    if running:
        raise Refused(
            f"--nodes {requested}: jobs run on the current nodes ({', '.join(sorted(running)[:8])}); wait for them to"
            " end, or cancel them",
            field="nodes",
            reason="JobsRunning",
        )
    with store.transaction():
        store.put_setting(_SHAPE_SETTING, after)
    return after


def _nodes(shape: str) -> tuple[tuple[NodeView, ...], dict[str, tuple[str, ...]]]:
    """The nodes, and by node the names of its GPUs in CUDA_VISIBLE_DEVICES."""
    if not shape:
        capacity = measure_capacity()
        node = host_node(capacity)
        return (node,), {node.name: capacity.gpus}
    nodes = virtual_nodes(parse_shape(shape))
    return nodes, {node.name: tuple(str(number) for number in range(node.allocatable.get(GPU))) for node in nodes}


def _umask() -> int:
    """The umask that the daemon was started with; sets the daemon's own to 077."""
    return os.umask(0o077)


def ensure_default_objects(store: SqliteStore, nodes: Iterable[NodeView], now: float) -> None:
    """Create flavor `local` and queue `default` at the first start only, so that users may delete or change them.

    The queue guarantees all pod slots and limits no other resource. While it is unchanged, it is updated with the
    nodes.
    """
    slots = str(sum(node.allocatable.get("pods") for node in nodes))
    desired = spec.QueueSpec(
        namespace_selector=spec.LabelSelector(),
        resources=[spec.FlavorQuota(flavor=DEFAULT_FLAVOR, guaranteed={"pods": slots})],
    )
    written = store.settings.get(_DEFAULT_QUEUE_SETTING)
    with store.transaction():
        if written is None:
            store.put(spec.Flavor(metadata=_metadata(DEFAULT_FLAVOR, now), spec=_flavor()))
            store.put(spec.Queue(metadata=_metadata(DEFAULT_QUEUE, now), spec=desired))
        elif (queue := store.queues.get(DEFAULT_QUEUE)) is None or queue.spec.model_dump_json() != written:
            return
        elif queue.spec != desired:
            metadata = queue.metadata.model_copy(update={"generation": queue.metadata.generation + 1})
            store.put(queue.model_copy(update={"spec": desired, "metadata": metadata}))
        store.put_setting(_DEFAULT_QUEUE_SETTING, desired.model_dump_json())


def _flavor() -> spec.FlavorSpec:
    levels = (("block", BLOCK_LABEL), ("rack", RACK_LABEL), ("host", HOSTNAME_LABEL))
    topology = [spec.TopologyLevel(name=name, node_label=label) for name, label in levels]
    return spec.FlavorSpec(node_labels={LOCAL_LABEL: "true"}, topology=topology)


def _metadata(name: str, now: float) -> spec.ObjectMeta:
    return spec.ObjectMeta(name=name, uid=uuid.uuid4().hex, creation_timestamp=now)
