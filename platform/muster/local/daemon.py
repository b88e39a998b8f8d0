"""The daemon of one home: `python -m muster.local.daemon`.

It can be killed at any time: shims keep the replicas running, and the next daemon takes them over. It exits when no job
is unfinished and no request came for the idle time. `assemble` builds its parts in the order in which they depend on
each other, and its default objects.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import math
import os
import shlex
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

from muster.api import spec
from muster.cluster import NodeView
from muster.errors import ClusterError, DaemonError, MusterError, Refused
from muster.local.cluster import LocalCluster
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.local.environment import JobEnvironmentStore, allowed_environment
from muster.local.home import Home, open_home, release_space, reserve_space
from muster.local.launcher import LaunchContext, boot_id, check_platform, default_log_limit
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
from muster.local.reports import ReportBuilder
from muster.local.server import DaemonServer
from muster.local.service import ChangeNotifier, DaemonService
from muster.local.stalled_jobs import StalledJobs
from muster.local.store import SqliteStore, open_store
from muster.workload.conditions import is_admitted, is_finished

ALREADY_RUNNING_EXIT_CODE = 3
_LOG = logging.getLogger("muster.local")
_DEFAULT_IDLE_S = 600.0
DEFAULT_FLAVOR, DEFAULT_QUEUE = "local", "default"
_SHAPE_SETTING, _DEFAULT_QUEUE_SETTING = "nodes", "default_queue"
_DEFAULT_COLLECTOR = (sys.executable, "-m", "muster.tracing.collector")


def serve(home: Home, options: argparse.Namespace) -> None:
    """Lock the home and serve until the daemon ends. Raises `MusterError`."""
    idle_s = idle_seconds(options.idle_seconds, os.environ)
    lock = take_lock(home)
    components = assemble(home, options.nodes, options.boot_id_file)
    home.stopped_marker.unlink(missing_ok=True)
    loop = ControlLoop(home, components, idle_s, lock)
    server = DaemonServer(home.socket(), components.service, loop)

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.request_stop("handover", force=False)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    shape = f" ({components.shape})" if components.shape else ""
    _LOG.info("started: pid %d, %d nodes%s", os.getpid(), len(components.cluster.nodes), shape)
    _report_ready(options, "ok")
    try:
        loop.run()
    finally:
        server.remove_socket()
        components.reports.stop()
        components.store.close()
        _LOG.info("stopped")


def take_lock(home: Home) -> int:
    """Lock the home for the lifetime of this process. Raises `DaemonError` AlreadyRunning."""
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise DaemonError(
            f"a daemon is already running for {home.path} (pid {holder}); use it, or set MUSTER_HOME",
            reason="AlreadyRunning",
        ) from error
    with suppress(OSError):  # a full disk; not truncated, since the space might not be available again
        os.pwrite(lock, f"{os.getpid()}\n".ljust(32).encode(), 0)
    return lock


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a normal end, 3 if another daemon runs for the home, 1 if this one cannot start."""
    options = _parse_arguments(argv)
    try:
        home = open_home(options.home)
        _configure_logging(home.log, foreground=not options.detach)
        if options.detach:
            _detach()
        serve(home, options)
    except MusterError as error:
        _LOG.error("%s", error)
        _report_ready(options, f"{error.reason}: {error}")
        if not options.detach:
            print(f"muster: {error}", file=sys.stderr)
        return ALREADY_RUNNING_EXIT_CODE if error.reason == "AlreadyRunning" else 1
    except Exception as error:  # the waiting client must get the cause
        _LOG.exception("the daemon failed")
        message = f"the daemon cannot start: {type(error).__name__}: {error}; see daemon.log"
        _report_ready(options, f"StartFailed: {message}")
        return 1
    return 0


def idle_seconds(option: str | None, environ: Mapping[str, str]) -> float:
    """Seconds without jobs and requests after which the daemon exits. Raises `DaemonError` InvalidIdleTimeout."""
    name, text = ("--idle-seconds", option) if option else ("MUSTER_IDLE_SECONDS", environ.get("MUSTER_IDLE_SECONDS"))
    try:
        seconds = float(text or _DEFAULT_IDLE_S)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise DaemonError(
            f"{name}: must be a finite number of seconds from 0, such as 600; got {text!r}",
            reason="InvalidIdleTimeout",
        )
    return seconds


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m muster.local.daemon", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--home", help="the daemon's folder; default $MUSTER_HOME, else ~/.muster")
    parser.add_argument(
        "--nodes",
        help="shape of virtual nodes, such as 4x8; `host` for the host itself; default: that of the last start",
    )
    parser.add_argument(
        "--idle-seconds",
        help="exit after this time without jobs and requests; default $MUSTER_IDLE_SECONDS, else 600",
    )  # fmt: skip
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--ready-fd", type=int, help="file descriptor on which `ok` or an error is written")
    parser.add_argument(
        "--boot-id-file", type=Path, default=os.environ.get("MUSTER_BOOT_ID_FILE"),
        help="file with the boot id; default the kernel's",
    )  # fmt: skip
    return parser.parse_args(argv)


def _detach() -> None:
    """Detach from the terminal and the parent process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(devnull, fd)


def _configure_logging(path: Path, foreground: bool) -> None:
    logging.raiseExceptions = False  # a full disk must not end the daemon
    handlers: list[logging.Handler] = [RotatingFileHandler(path, maxBytes=2**20, backupCount=2)]
    if foreground:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)


def _report_ready(options: argparse.Namespace, text: str) -> None:
    """Write one line to --ready-fd, once: after it is closed, its number may belong to another file."""
    fd, options.ready_fd = options.ready_fd, None
    if fd is not None:
        with suppress(OSError):  # the parent no longer waits
            os.write(fd, f"{' '.join(text.splitlines())}\n".encode())
            os.close(fd)


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
    stalled = StalledJobs(store, cluster.run_dir)
    return DaemonComponents(store, supervisor, cluster, service, reports, stalled, notifier, shape)


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
    with suppress(ClusterError), store.transaction():  # a full disk
        store.delete_old_usage(time.time())
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
        elif (queue := store.queues.get(DEFAULT_QUEUE)) is None or queue.spec != _read_spec(written):
            return
        elif queue.spec != desired:
            metadata = queue.metadata.model_copy(update={"generation": queue.metadata.generation + 1})
            store.put(queue.model_copy(update={"spec": desired, "metadata": metadata}))
        store.put_setting(_DEFAULT_QUEUE_SETTING, desired.model_dump_json())


def _read_spec(written: str) -> spec.QueueSpec | None:
    """The queue that an earlier daemon, perhaps of another version, wrote; None if this version cannot read it."""
    try:
        return spec.QueueSpec.model_validate_json(written)
    except ValueError:
        return None


def _flavor() -> spec.FlavorSpec:
    levels = (("block", BLOCK_LABEL), ("rack", RACK_LABEL), ("host", HOSTNAME_LABEL))
    topology = [spec.TopologyLevel(name=name, node_label=label) for name, label in levels]
    return spec.FlavorSpec(node_labels={LOCAL_LABEL: "true"}, topology=topology)


def _metadata(name: str, now: float) -> spec.ObjectMeta:
    return spec.ObjectMeta(name=name, uid=uuid.uuid4().hex, creation_timestamp=now)


if __name__ == "__main__":
    sys.exit(main())
