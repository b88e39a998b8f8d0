"""Makes the processes of this host what the database says, and the database what became of them.

The same pass runs every time something may have changed: for each pod, look at its folder, then start, adopt, stop or
finish it. So a daemon that was killed needs no special recovery. What is decided is written before it is done: the
record before the shim is started, the end before the room is given away.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.backoff import Backoff
from muster.errors import ClusterError
from muster.local import shim
from muster.local.devices import free_devices
from muster.local.exit_status import (
    PORT_IN_USE,
    is_pod_error,
    record_exit,
    record_rank_failure,
    record_shim_lost,
    record_start_error,
)
from muster.local.launcher import LaunchContext, ShimHandle, start_shim
from muster.local.logs import tail
from muster.local.pod_folder import PodFolder, ShimExited, ShimLost, ShimNotStarted, ShimRunning, ShimState
from muster.local.processes import Process, kill_matching
from muster.local.records import EventRecord, PodRecord
from muster.local.store import SqliteStore

_SHIM_EXIT_TIMEOUT_S = 15.0  # a shim that outlives grace, drain and this is killed
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 30.0
_GIVE_UP_AFTER = 3  # failed starts of a pod whose own files are wrong
_FAST_POLL_S = 0.02


class PodSupervisor:
    """The pods of this host. Its owner holds the lock of the store."""

    def __init__(
        self,
        host: LaunchContext,
        store: SqliteStore,
        devices: dict[str, tuple[str, ...]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._store = store
        self._devices = devices  # by node
        self._clock = clock
        self._shims: dict[str, ShimHandle] = {}
        self._retries: dict[str, Backoff] = {}  # by pod that could not be started
        self._unknown_status: dict[str, str] = {}  # by pod that could not be looked at: what was said of it
        self._changed = False
        self._next_sync_at: float | None = None
        self._stopping_since: float | None = None

    def sync(self) -> bool:
        """One pass; True when a record changed. `due()` tells when the next one is needed at the latest."""
        now = self._clock()
        self._next_sync_at = None
        finished: list[PodRecord] = []
        gone: list[PodRecord] = []
        startable: list[PodRecord] = []
        for pod in [pod for pods in self._store.pods.values() for pod in pods.values()]:
            try:
                after = self._sync_pod(pod, now)
            except OSError as error:  # of this pod's folder: the others go on
                self._report_unknown_status(pod, now, str(error))
                continue
            if after is None:
                gone.append(pod)
            elif after is not pod:
                finished.append(after)
            elif pod.phase == "Pending" and pod.name not in self._shims and self._can_start(pod, now):
                startable.append(pod)
        finished += self._record_failing_peers(finished)
        if finished or gone:
            with self._store.transaction():
                for pod in finished:
                    self._store.put_pod(pod)
                for pod in gone:
                    self._store.remove_pod(pod)
            self._changed = True
        self._start_pods(startable, now)
        return bool(finished or gone)

    def pop_changed(self) -> bool:
        """Whether any pass since the last call changed a record, whoever made it: the engine has to look again."""
        changed, self._changed = self._changed, False
        return changed

    def next_sync_at(self) -> float | None:
        """When the next pass is needed even if no process ends, Unix seconds; None: not by itself."""
        return self._next_sync_at

    def shim_fds(self) -> list[int]:
        """File descriptors that become readable when a shim ends."""
        return [watch.process.fd for watch in self._shims.values()]

    def stop_all(self) -> None:
        """The host goes down: every replica gets SIGTERM and its grace; none is started any more."""
        self._stopping_since = self._clock()

    def kill_all(self) -> None:
        """The home is gone: end everything at once, there is nothing left to save it to."""
        ours = self._home_marker()
        kill_matching(lambda variables: any(variable.startswith(ours) for variable in variables))

    def live_shim_count(self) -> int:
        """How many shims are known to live."""
        return len(self._shims)

    def kill_orphans(self) -> int:
        """Kill what runs on behalf of this home without a record: its job is gone. Returns the number of processes."""
        living = {_pod_marker(pod) for pods in self._store.pods.values() for pod in pods.values() if not pod.finished}
        ours = self._home_marker()

        def is_orphan(variables: frozenset[bytes]) -> bool:
            return any(variable.startswith(ours) for variable in variables) and not living & variables

        return kill_matching(is_orphan)

    def _home_marker(self) -> bytes:
        """How a variable begins that only replicas of this home have."""
        return b"MUSTER_RUN_DIR=" + os.fsencode(self._host.home.runs_dir) + b"/"

    # ---- one pod

    def _sync_pod(self, pod: PodRecord, now: float) -> PodRecord | None:
        """The record after a look at the pod; None when it is to be forgotten."""
        if pod.finished:
            return None if pod.deleting_at is not None else pod
        watch = self._shims.get(pod.name)
        if watch is not None and not watch.has_exited():
            return self._sync_running_pod(pod, watch, now)
        if watch is not None:
            self._shims.pop(pod.name).process.close()
        state = self._folder(pod).state()
        if isinstance(state, ShimRunning):
            process = Process.find(state.pid, state.start_time) if state.pid is not None else None
            if process is None:
                self._schedule_sync(now + _FAST_POLL_S)  # about to write its pid, or about to let the lock go
                return pod
            self._shims[pod.name] = watch = ShimHandle(process, None)
            return self._sync_running_pod(pod, watch, now)
        if pod.deleting_at is not None:
            if isinstance(state, ShimNotStarted) and not self._folder(pod).prevent_start():
                self._schedule_sync(now + _FAST_POLL_S)  # a shim of an earlier daemon came first: stop it
                return pod
            if isinstance(state, ShimLost):
                self._kill_leftovers(pod)
            return None
        if isinstance(state, ShimNotStarted):
            if watch is not None:  # its shim ended without having begun, for whatever reason
                self._retry_later(pod, now, self._shim_error(pod, watch))
            return pod
        return self._finished_record(pod, state)

    def _sync_running_pod(self, pod: PodRecord, handle: ShimHandle, now: float) -> PodRecord:
        if pod.phase != "Running" and not self._folder(pod).has_started():
            self._schedule_sync(now + _FAST_POLL_S)
            return pod
        asked_at = pod.deleting_at if pod.deleting_at is not None else self._stopping_since
        if asked_at is not None:
            self._terminate(pod, handle, asked_at, now)
        self._retries.pop(pod.name, None)
        return pod if pod.phase == "Running" else replace(pod, phase="Running")

    def _terminate(self, pod: PodRecord, handle: ShimHandle, requested_at: float, now: float) -> None:
        """SIGTERM once; the shim itself counts the grace. SIGKILL to the shim only when it is stuck."""
        if handle.stop_sent != (requested_at, pod.grace_s):
            with suppress(OSError):  # a full disk: the shim then takes the grace of its spec
                self._folder(pod).write_stop(max(0.0, requested_at + pod.grace_s - now))
            handle.process.send_signal(signal.SIGTERM)
            handle.stop_sent = (requested_at, pod.grace_s)
        stuck_at = requested_at + pod.grace_s + self._host.drain_s + _SHIM_EXIT_TIMEOUT_S
        if now >= stuck_at:
            handle.process.send_signal(signal.SIGKILL)
            stuck_at = now + _SHIM_EXIT_TIMEOUT_S
        self._schedule_sync(stuck_at)

    def _finished_record(self, pod: PodRecord, state: ShimState) -> PodRecord:
        """The record of a pod of which no process is left."""
        if isinstance(state, ShimLost):
            self._kill_leftovers(pod)
            return record_shim_lost(pod, state, self._host.boot_id, self._clock())
        assert isinstance(state, ShimExited)
        if state.collector_status not in (None, 0):
            self._event(
                pod, "CollectorFailed", f"the trace collector of {pod.name} ended with {state.collector_status}"
            )
        after = record_exit(pod, state, self._folder(pod), self._log(pod))
        if after.reason == PORT_IN_USE:
            message = (
                f"another program has port {pod.port}, where {pod.name} was to listen: the gang meets at another one"
            )
            self._event(pod, PORT_IN_USE, message)
        return after

    def _record_failing_peers(self, finished: list[PodRecord]) -> list[PodRecord]:
        """Pods that still end although a rank of theirs has failed, as soon as another one of their attempt failed.

        Both are written at once: which failed first decides what the engine does, and it looks only once.
        """
        failed = {(pod.job_uid, pod.attempt) for pod in finished if pod.phase == "Failed"}
        known = {pod.name for pod in finished}
        noted = []
        for uid, attempt in failed:
            for pod in self._store.pods[uid].values():
                if pod.attempt == attempt and pod.name not in known and pod.phase == "Running":
                    failing = record_rank_failure(pod, self._folder(pod), self._log(pod))
                    if failing is not None:
                        noted.append(failing)
        return noted

    # ---- starting

    def _can_start(self, pod: PodRecord, now: float) -> bool:
        if pod.deleting_at is not None or self._stopping_since is not None:
            return False
        retry = self._retries.get(pod.name)
        if retry is not None and now < retry.retry_at:
            self._schedule_sync(retry.retry_at)
            return False
        return True

    def _start_pods(self, pods: Iterable[PodRecord], now: float) -> None:
        """Choose devices, write that down, then start the shims."""
        chosen: list[PodRecord] = []
        with self._store.transaction():
            for pod in pods:
                if pod.devices is None:
                    devices = free_devices(self._devices.get(pod.node, ()), self._pods_on_node(pod.node), pod.gpus)
                    if devices is None:
                        continue  # a replica that leaves still has them; its end brings the next pass
                    pod = replace(pod, devices=devices)
                    self._store.put_pod(pod)
                chosen.append(pod)
        for pod in chosen:
            job = self._store.jobs.get(pod.job_uid)
            if job is None:
                continue
            try:
                self._shims[pod.name] = start_shim(self._host, pod, job)
            except OSError as error:
                self._retry_later(pod, now, str(error))
                if self._retries[pod.name].failures >= _GIVE_UP_AFTER and is_pod_error(error, self._host.home):
                    self._fail_pod(record_start_error(pod, str(error), now))
            self._schedule_sync(now + _FAST_POLL_S)

    def _fail_pod(self, failed: PodRecord) -> None:
        """The failure rules of its job decide what follows: the room is not kept for a pod that can never begin."""
        with self._store.transaction():
            self._store.put_pod(failed)
        self._retries.pop(failed.name, None)
        self._changed = True

    def _retry_later(self, pod: PodRecord, now: float, message: str) -> None:
        self._event(pod, "ReplicaStartFailed", f"{pod.name} could not be started and will be tried again: {message}")
        retry = self._retries.setdefault(pod.name, Backoff(_FIRST_RETRY_S, _MAX_RETRY_S))
        self._schedule_sync(now + retry.fail(now))

    def _report_unknown_status(self, pod: PodRecord, now: float, message: str) -> None:
        if self._unknown_status.get(pod.name) != message:
            self._event(
                pod, "ReplicaStatusUnknown", f"what became of {pod.name} cannot be seen, it is tried again: {message}"
            )
            self._unknown_status[pod.name] = message
        self._schedule_sync(now + _FIRST_RETRY_S)

    # ---- small things

    def _pods_on_node(self, node: str) -> Iterable[PodRecord]:
        return [pod for pods in self._store.pods.values() for pod in pods.values() if pod.node == node]

    def _folder(self, pod: PodRecord) -> PodFolder:
        return self._host.pod_folder(pod)

    def _log(self, pod: PodRecord) -> Path:
        return self._host.log_file(pod, self._store.jobs[pod.job_uid])

    def _event(self, pod: PodRecord, reason: str, message: str) -> None:
        try:
            with self._store.transaction():
                self._store.add_event(EventRecord(pod.job_uid, self._clock(), "Warning", reason, message))
        except ClusterError:
            pass  # the disk may be what it is about

    def _shim_error(self, pod: PodRecord, handle: ShimHandle) -> str:
        """What its shim said, or else how it ended."""
        output = tail(self._folder(pod).path / "shim.err").strip().rpartition("\n")[2]
        code = handle.popen.returncode if handle.popen is not None else None
        return output if code == shim.NO_SPACE else f"its shim ended with {code}: {output or 'without a word'}"

    def _kill_leftovers(self, pod: PodRecord) -> None:
        """What the replica of a shim that was killed had started: the first process went with it, its children not."""
        mark, ours = _pod_marker(pod), self._home_marker()
        kill_matching(lambda variables: mark in variables and any(one.startswith(ours) for one in variables))

    def _schedule_sync(self, when: float) -> None:
        self._next_sync_at = when if self._next_sync_at is None else min(self._next_sync_at, when)


def _pod_marker(pod: PodRecord) -> bytes:
    """What only processes of this pod have in their environment."""
    return f"MUSTER_POD={pod.name}".encode()
