"""Starts and stops the processes of pods as the database requires, and records how they end.

The same pass runs whenever something may have changed: it reads each pod's folder, then starts, adopts, stops or
finishes the pod. So the restart of a killed daemon needs no special recovery. Each decision is stored before it takes
effect: the record before the shim starts, the end before the resources are released. A pod is Lost, not Failed, if
another program, the host or its administrator ended it: its job is not at fault.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.backoff import Backoff
from muster.errors import ClusterError
from muster.local import shim
from muster.local.home import Home
from muster.local.launcher import LaunchContext, Process, ShimHandle, kill_matching, start_shim
from muster.local.pod_folder import PodFolder, ShimExited, ShimLost, ShimNotStarted, ShimRunning, ShimState
from muster.local.run_folder import tail
from muster.local.stopped_ranks import find_stopped_ranks
from muster.local.store import EventRecord, PodRecord, SqliteStore

_SHIM_EXIT_TIMEOUT_S = 15.0  # after grace period and drain, then the shim is killed
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 30.0
_GIVE_UP_AFTER = 3  # failed starts of a pod whose own files are invalid
_FAST_POLL_S = 0.02
_POD_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
                         errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})  # fmt: skip
_PORT_IN_USE = "PortInUse"
"""Reason of a pod whose launcher found its rendezvous port taken by another program."""
_START_ERROR = "StartError"
"""Reason of a pod whose own files cannot be written although the home is writable."""


class PodSupervisor:
    """The pods of this host. The caller holds the lock of the store."""

    def __init__(
        self,
        context: LaunchContext,
        store: SqliteStore,
        devices: dict[str, tuple[str, ...]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._store = store
        self._devices = devices  # by node
        self._clock = clock
        self._shims: dict[str, ShimHandle] = {}
        self._retries: dict[str, Backoff] = {}  # by pod that could not be started
        self._unknown_status: dict[str, str] = {}  # by pod whose folder cannot be read: the last error
        self._changed = False
        self._next_sync_at: float | None = None
        self._stopping_since: float | None = None

    def sync(self) -> bool:
        """One pass over all pods; True if a record changed. `next_sync_at` is the time of the next one."""
        now = self._clock()
        self._next_sync_at = None
        changed: list[PodRecord] = []
        removed: list[PodRecord] = []
        startable: list[PodRecord] = []
        for pod in [pod for pods in self._store.pods.values() for pod in pods.values()]:
            try:
                after = self._sync_pod(pod, now)
            except OSError as error:  # affects this pod only
                self._report_unknown_status(pod, now, str(error))
                continue
            if after is None:
                removed.append(pod)
            elif after is not pod:
                changed.append(after)
            elif pod.phase == "Pending" and pod.name not in self._shims and self._can_start(pod, now):
                startable.append(pod)
        changed += self._record_failing_peers(changed)
        if changed or removed:
            with self._store.transaction():
                for pod in changed:
                    self._store.put_pod(pod)
                for pod in removed:
                    self._store.remove_pod(pod)
            self._changed = True
            ended = [pod for pod in changed if pod.finished] + [pod for pod in removed if not pod.finished]
            for uid, attempt in sorted({(pod.job_uid, pod.attempt) for pod in ended}):
                self._report_stopped_ranks(uid, attempt)
        self._start_pods(startable, now)
        return bool(changed or removed)

    def pop_changed(self) -> bool:
        """Whether any pass since the last call changed a record, so that the engine must run again."""
        changed, self._changed = self._changed, False
        return changed

    def next_sync_at(self) -> float | None:
        """Unix time of the next pass if no process ends before; None if none is needed."""
        return self._next_sync_at

    def shim_fds(self) -> list[int]:
        """File descriptors that become readable when a shim ends."""
        return [handle.process.fd for handle in self._shims.values()]

    def stop_all(self) -> None:
        """Stop all pods with SIGTERM and their grace periods, and start no more."""
        self._stopping_since = self._clock()

    def kill_all(self) -> None:
        """Kill the processes of all recorded pods at once: the home was removed, so that nothing can be saved. The path
        may be that of a new home by now, whose pods have other names."""
        for handle in self._shims.values():  # one that has just started would start its replica later
            handle.process.send_signal(signal.SIGKILL)
        until = time.monotonic() + _SHIM_EXIT_TIMEOUT_S
        for handle in self._shims.values():
            handle.wait(max(0.0, until - time.monotonic()))
        recorded = {_pod_marker(pod) for pods in self._store.pods.values() for pod in pods.values()}
        kill_matching(lambda variables: self._is_of_this_home(variables) and bool(recorded & variables))

    def live_shim_count(self) -> int:
        return len(self._shims)

    def kill_orphans(self) -> int:
        """Kill processes of this home without a pod record, whose job was removed. Returns their number."""
        recorded = {_pod_marker(pod) for pods in self._store.pods.values() for pod in pods.values() if not pod.finished}
        return kill_matching(lambda variables: self._is_of_this_home(variables) and not recorded & variables)

    def _is_of_this_home(self, variables: frozenset[bytes]) -> bool:
        """Whether a process with this environment is part of a replica of this home."""
        prefix = b"MUSTER_RUN_DIR=" + os.fsencode(self._context.home.runs_dir) + b"/"
        return any(variable.startswith(prefix) for variable in variables)

    # ---- one pod

    def _sync_pod(self, pod: PodRecord, now: float) -> PodRecord | None:
        """The pod's new record; None if it is to be removed."""
        if pod.finished:
            return pod  # the engine deletes its record, with the status that tells of its end
        handle = self._shims.get(pod.name)
        if handle is not None and not handle.has_exited():
            return self._sync_running_pod(pod, handle, now)
        if handle is not None:
            self._shims.pop(pod.name).process.close()
        state = self._folder(pod).state()
        if isinstance(state, ShimRunning):
            process = Process.find(state.pid, state.start_time) if state.pid is not None else None
            if process is None:
                self._schedule_sync(now + _FAST_POLL_S)  # it is about to write its pid, or to release the lock
                return pod
            self._shims[pod.name] = handle = ShimHandle(process, None)
            return self._sync_running_pod(pod, handle, now)
        if pod.deleting_at is not None:
            if isinstance(state, ShimNotStarted) and not self._folder(pod).prevent_start():
                self._schedule_sync(now + _FAST_POLL_S)  # a shim of an earlier daemon has just started
                return pod
            if isinstance(state, ShimLost):
                self._kill_leftovers(pod)
            if isinstance(state, ShimExited) and state.exit_code == 0:  # it may have done its last step
                return self._finished_record(pod, state)
            return None
        if isinstance(state, ShimNotStarted):
            if handle is not None:  # its shim ended before it started the replica
                self._retry_later(pod, now, self._shim_error(pod, handle))
            return pod
        return self._finished_record(pod, state)

    def _sync_running_pod(self, pod: PodRecord, handle: ShimHandle, now: float) -> PodRecord:
        if pod.phase != "Running" and not self._folder(pod).has_started():
            self._schedule_sync(now + _FAST_POLL_S)
            return pod
        requested_at = pod.deleting_at if pod.deleting_at is not None else self._stopping_since
        if requested_at is not None:
            self._terminate(pod, handle, requested_at, now)
        self._retries.pop(pod.name, None)
        return pod if pod.phase == "Running" else replace(pod, phase="Running")

    def _terminate(self, pod: PodRecord, handle: ShimHandle, requested_at: float, now: float) -> None:
        """Send SIGTERM once; the shim enforces the grace period. SIGKILL is for a shim that hangs."""
        if handle.stop_sent != (requested_at, pod.grace_s):
            with suppress(OSError):  # a full disk: the shim uses the grace period of its spec
                self._folder(pod).write_stop(max(0.0, requested_at + pod.grace_s - now))
            handle.process.send_signal(signal.SIGTERM)
            handle.stop_sent = (requested_at, pod.grace_s)
        stuck_at = requested_at + pod.grace_s + self._context.drain_s + _SHIM_EXIT_TIMEOUT_S
        if now >= stuck_at:
            handle.process.send_signal(signal.SIGKILL)
            stuck_at = now + _SHIM_EXIT_TIMEOUT_S
        self._schedule_sync(stuck_at)

    def _finished_record(self, pod: PodRecord, state: ShimState) -> PodRecord:
        """The record of a pod whose shim has ended."""
        if isinstance(state, ShimLost):
            self._kill_leftovers(pod)
            return _record_shim_lost(pod, state, self._context.boot_id, self._clock())
        assert isinstance(state, ShimExited)
        if state.collector_status not in (None, 0):
            message = f"the trace collector of {pod.name} ended with exit code {state.collector_status}"
            self._event(pod, "CollectorFailed", message)
        after = _record_exit(pod, state, self._folder(pod), self._log(pod))
        if after.reason == _PORT_IN_USE:
            message = (
                f"another program uses rendezvous port {pod.port} of {pod.name}; the gang restarts with another port"
            )
            self._event(pod, _PORT_IN_USE, message)
        return after

    def _report_stopped_ranks(self, uid: str, attempt: int) -> None:
        """Say where ranks were that did not stop, stalled, or saved no checkpoint, once no pod of the attempt runs any
        more."""
        job, pods = self._store.find_job(uid), self._store.pods.get(uid, {}).values()
        if job is None or any(pod.attempt == attempt and not pod.finished for pod in pods):
            return
        found = find_stopped_ranks(job, attempt, self._context.run_dir(job))
        if found is not None and found.status != job.status:
            with suppress(ClusterError), self._store.transaction():
                self._store.put_status(uid, found.status, self._clock())
        if found is not None and found.event:
            self._record_event(uid, "RanksDidNotStop", found.event)

    def _record_failing_peers(self, changed: list[PodRecord]) -> list[PodRecord]:
        """Records of pods that are still ending after a rank failed, if another pod of their attempt has failed.

        Both are written together, since the engine reacts to the first failure and evaluates it only once.
        """
        failed = {(pod.job_uid, pod.attempt) for pod in changed if pod.phase == "Failed"}
        known = {pod.name for pod in changed}
        failing = [
            _record_rank_failure(pod, self._folder(pod), self._log(pod))
            for uid, attempt in failed
            for pod in self._store.pods[uid].values()
            if pod.attempt == attempt and pod.name not in known and pod.phase == "Running"
        ]
        return [pod for pod in failing if pod is not None]

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
        """Choose devices, store them, then start the shims."""
        startable: list[PodRecord] = []
        with self._store.transaction():
            for pod in pods:
                if pod.devices is None:
                    devices = free_devices(self._devices.get(pod.node, ()), self._pods_on_node(pod.node), pod.gpus)
                    if devices is None:
                        continue  # a terminating replica still has them; its end triggers the next pass
                    pod = replace(pod, devices=devices)
                    self._store.put_pod(pod)
                startable.append(pod)
        for pod in startable:
            job = self._store.find_job(pod.job_uid)
            if job is None:
                continue
            try:
                self._shims[pod.name] = start_shim(self._context, pod, job)
            except OSError as error:
                self._retry_later(pod, now, str(error))
                if self._retries[pod.name].failures >= _GIVE_UP_AFTER and is_pod_error(error, self._context.home):
                    self._fail_pod(_record_start_error(pod, str(error), now))
            self._schedule_sync(now + _FAST_POLL_S)

    def _fail_pod(self, failed: PodRecord) -> None:
        """Fail a pod that can never start, so that the failure rules of its job apply."""
        with self._store.transaction():
            self._store.put_pod(failed)
        self._retries.pop(failed.name, None)
        self._changed = True

    def _retry_later(self, pod: PodRecord, now: float, message: str) -> None:
        self._event(pod, "ReplicaStartFailed", f"{pod.name} could not be started; retrying: {message}")
        retry = self._retries.setdefault(pod.name, Backoff(_FIRST_RETRY_S, _MAX_RETRY_S))
        self._schedule_sync(now + retry.fail(now))

    def _report_unknown_status(self, pod: PodRecord, now: float, message: str) -> None:
        if self._unknown_status.get(pod.name) != message:
            self._event(pod, "ReplicaStatusUnknown", f"the status of {pod.name} cannot be read; retrying: {message}")
            self._unknown_status[pod.name] = message
        self._schedule_sync(now + _FIRST_RETRY_S)

    # ---- helpers

    def _pods_on_node(self, node: str) -> Iterable[PodRecord]:
        return [pod for pods in self._store.pods.values() for pod in pods.values() if pod.node == node]

    def _folder(self, pod: PodRecord) -> PodFolder:
        return self._context.pod_folder(pod)

    def _log(self, pod: PodRecord) -> Path:
        job = self._store.find_job(pod.job_uid)
        assert job is not None, "the records of its pods are removed before a job"
        return self._context.log_file(pod, job)

    def _event(self, pod: PodRecord, reason: str, message: str) -> None:
        self._record_event(pod.job_uid, reason, message)

    def _record_event(self, uid: str, reason: str, message: str) -> None:
        try:
            with self._store.transaction():
                self._store.add_event(EventRecord(uid, self._clock(), "Warning", reason, message))
        except ClusterError:
            pass  # the disk may be full, which may be what the event is about

    def _shim_error(self, pod: PodRecord, handle: ShimHandle) -> str:
        """The shim's error message or exit code."""
        message = tail(self._folder(pod).path / "shim.err").strip().rpartition("\n")[2]
        code = handle.popen.returncode if handle.popen is not None else None
        return message if code == shim.NO_SPACE else f"its shim ended with exit code {code}: {message or 'no output'}"

    def _kill_leftovers(self, pod: PodRecord) -> None:
        """Kill what a killed shim left: its replica's first process ended with it, the children of that one did not."""
        marker = _pod_marker(pod)
        kill_matching(lambda variables: marker in variables and self._is_of_this_home(variables))

    def _schedule_sync(self, when: float) -> None:
        self._next_sync_at = when if self._next_sync_at is None else min(self._next_sync_at, when)


def _pod_marker(pod: PodRecord) -> bytes:
    """A variable that only processes of this pod have."""
    return f"MUSTER_POD={pod.name}".encode()


def free_devices(all_devices: tuple[str, ...], on_node: Iterable[PodRecord], count: int) -> tuple[str, ...] | None:
    """The first `count` devices of a node that no unfinished pod has; None if there are fewer."""
    taken = {device for pod in on_node if not pod.finished for device in pod.devices or ()}
    free = [device for device in all_devices if device not in taken]
    return tuple(free[:count]) if len(free) >= count else None


def is_pod_error(error: OSError, home: Home) -> bool:
    """Whether only the files of one pod are affected: not by a full disk or a lack of processes, which may pass, and
    not by an error that other pods of the home would have as well."""
    if error.errno not in _POD_ERRNOS:
        return False
    try:
        for folder in (home.path, home.runs_dir, home.pods_dir):
            if folder.exists():
                tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _record_start_error(pod: PodRecord, message: str, now: float) -> PodRecord:
    """The record of a pod that cannot be started and is not retried."""
    return replace(
        pod, phase="Failed", reason=_START_ERROR, finished_at=now, log_tail=f"cannot be started: {message}\n"
    )


def _record_shim_lost(pod: PodRecord, state: ShimLost, boot_id: str, now: float) -> PodRecord:
    """The record of a pod whose shim ended without writing its exit file."""
    reason = "ShimKilled" if state.boot_id == boot_id else "Rebooted"
    return replace(pod, phase="Lost", reason=reason, finished_at=now)


def _record_exit(pod: PodRecord, state: ShimExited, folder: PodFolder, log: Path) -> PodRecord:
    """The record of a pod whose shim has written its exit file."""
    after = replace(pod, exit_code=state.exit_code, finished_at=state.finished_at, failed_at=state.failed_at)
    if state.stopped and pod.deleting_at is None:  # the daemon is stopping all pods
        return replace(after, phase="Lost", reason="NodeShutdown")
    if state.exit_code == 0:
        return replace(after, phase="Succeeded", reason="Completed")
    if folder.port_in_use():
        return replace(after, phase="Lost", reason=_PORT_IN_USE)
    reason = "OOMKilled" if state.out_of_memory else "Error"
    return replace(after, phase="Failed", reason=reason, log_tail=tail(log))


def _record_rank_failure(pod: PodRecord, folder: PodFolder, log: Path) -> PodRecord | None:
    """The record of a pod that is still ending after one of its ranks failed; None if none failed."""
    failure = folder.first_rank_failure()
    if failure is None or folder.port_in_use():
        return None
    code, at = failure
    return replace(pod, exit_code=code, failed_at=at, reason="Error", log_tail=tail(log))
