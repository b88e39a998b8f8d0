"""The client of the daemon on this host, for the command line, TorchX and tests.

It starts the daemon if needed, and reads logs and heartbeats from run folders directly.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from muster.api.env_vars import OmittedVariables
from muster.api.spec import Flavor, ObjectMeta, TraceCapture, TraceCaptureSpec, TrainingJob
from muster.client import DEFAULT_LOG_OPTIONS, JobList, LogOptions, NodeJobs, check_replica
from muster.errors import DaemonUnavailable, NotFound, Refused
from muster.local import API_VERSION
from muster.local.daemon_client import DaemonClient
from muster.local.environment import annotate_submitter, omitted_env_vars, passed_variables, submitter_environment
from muster.local.home import Home, home_path, open_home
from muster.local.nodes import HOST_SHAPE, parse_shape
from muster.local.pod_folder import PodFolder
from muster.local.run_folder import (
    byte_range,
    check_attempt,
    has_log,
    is_complete,
    log_path,
    newest_attempt,
    newest_log_attempts,
    rank_heartbeats,
    read_lines,
    tail_offset,
    whole_lines,
)
from muster.text import did_you_mean
from muster.visibility.list_types import NodeSummaryList, QueueSummaryList, UsageSummaryList
from muster.visibility.reader import Listing, node_row, queue_row, read_list
from muster.visibility.types import UsageSummary
from muster.workload.conditions import has_terminated

if TYPE_CHECKING:
    from muster.api.yaml_input import AnyObject
    from muster.capture.protocol import JobStacks

_WATCH_TIMEOUT_S = 20.0


class LocalClient:
    """Talks to one home's daemon. Calls raise `Refused`, `NotFound`, `Conflict`, `InvalidSpec`, `DaemonError`."""

    def __init__(self, home: Home, start: bool) -> None:
        self._home = home
        self._daemon = DaemonClient(home, start)

    @classmethod
    def connect(cls, home: str | os.PathLike[str] | None = None, start: bool = True) -> LocalClient:
        """A client of the daemon of `home` (default $MUSTER_HOME, else ~/.muster); starts it unless `start` is False.

        After `down`, only `submit`, `apply` and `up` start it again. A daemon with an incompatible API version is
        replaced; its replicas keep running. Raises `DaemonError` NotRunning if none runs and `start` is False.
        """
        if not start and not home_path(home).is_dir():
            raise DaemonUnavailable(f"no daemon is running: {home_path(home)} does not exist")
        client = cls(open_home(home), start)
        client._daemon.ensure_compatible()
        return client

    # ---- the daemon

    def status(self) -> dict[str, Any]:
        return dict(self._daemon.request("GET", "/status"))

    @classmethod
    def up(
        cls, home: str | os.PathLike[str] | None = None, nodes: str | None = None, idle_s: float | None = None
    ) -> LocalClient:
        """Start the daemon; `nodes` is the shape of its virtual nodes (`host`: the real host).

        A daemon with other nodes is replaced if no job runs, else `Refused` JobsRunning. An invalid shape raises
        `InvalidSpec` and leaves a running daemon as it is.
        """
        if nodes not in (None, HOST_SHAPE):
            parse_shape(nodes)
        opened = open_home(home)
        DaemonClient(opened, start=False).ensure_running(nodes, idle_s)
        client = cls(opened, start=True)
        client._daemon.ensure_compatible()
        return client

    def down(self, force: bool = False) -> None:
        """Stop the daemon. Raises `Refused` while jobs run, unless `force`: then they are stopped with their grace
        period, and resume from their last checkpoint when the daemon is started again."""
        self._daemon.stop(force)

    # ---- objects

    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]:
        """Create or change objects, all or none: [{kind, namespace, name, result}]; result is created, configured or
        unchanged. A queue with a questionable quota also has `notices`."""
        items = [annotate_submitter(item) if isinstance(item, TrainingJob) else item for item in documents]
        url = f"/v{API_VERSION}/apply"
        return list(self._daemon.request("POST", url, _with_environments(items), start_if_stopped=True))

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Delete objects, (kind, name, namespace) each, in order, all or none: {kind, namespace, name, result} each.
        Result `deleting`: a job's replicas stop first, a queue waits for its unfinished jobs; a repeated delete is no
        error. Run folders are kept."""
        body = [{"kind": kind, "name": name, "namespace": namespace} for kind, name, namespace in targets]
        return list(self._daemon.request("POST", f"/v{API_VERSION}/delete", body))

    def submit(self, job: TrainingJob, dry_run: bool = False) -> TrainingJob:
        """Submit a job and return it with server-set fields; `dry_run` only validates. Raises `Refused` if it could
        never start."""
        return self.submit_all([job], dry_run)[0]

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        """Submit jobs, all or none, with the environment variables that they inherit from this process."""
        url = f"/v{API_VERSION}/jobs" + ("?dryRun=true" if dry_run else "")
        body = _with_environments([annotate_submitter(job) for job in jobs])
        return [
            TrainingJob.model_validate(job) for job in self._daemon.request("POST", url, body, start_if_stopped=True)
        ]

    def submit_objects(self, documents: Sequence[dict[str, Any]], dry_run: bool = False) -> list[dict[str, Any]]:
        """Raises `Refused`: on one host there are TrainingJobs only."""
        message = f"this host runs TrainingJobs only; select a cluster for a {documents[0]['kind']}"
        raise Refused(message, reason="NoCluster")

    def newly_omitted(self, jobs: Sequence[TrainingJob]) -> OmittedVariables | None:
        """This process's variables that none of these jobs inherits; None if all of them were in the last result for
        this home, so that the user is not notified again."""
        names = omitted_env_vars(os.environ, [name for job in jobs for name in passed_variables(job)])
        try:
            already_reported = set(json.loads(self._home.omitted_variables.read_bytes()))
        except (OSError, ValueError, TypeError):
            already_reported = set()
        if already_reported.issuperset(names):
            return None
        with suppress(OSError):
            self._home.omitted_variables.write_text(json.dumps(names, indent=1))
        return OmittedVariables(tuple(names), str(self._home.omitted_variables))

    def jobs(self, namespace: str | None = None) -> list[TrainingJob]:
        """Jobs, oldest first, with live queue positions and estimates."""
        url = f"/v{API_VERSION}/jobs" + (f"?{urlencode({'namespace': namespace})}" if namespace else "")
        return [TrainingJob.model_validate(job) for job in self._daemon.request("GET", url)]

    def job_list(self, namespace: str | None = None) -> JobList:
        """Like `jobs`; the list of unreadable jobs is always empty on this host."""
        return JobList(self.jobs(namespace))

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return TrainingJob.model_validate(self._daemon.request("GET", _job_url(namespace, name))["job"])

    def job_or_object(self, name: str, namespace: str = "default") -> TrainingJob:
        """The same: on one host there are no objects of other kinds."""
        return self.job(name, namespace)

    def live_job(self, name: str, namespace: str = "default") -> TrainingJob:
        """The same: a job of the daemon always has its position of the last cycle."""
        return self.job(name, namespace)

    def notices(self) -> list[str]:
        return []

    def cancel(self, name: str, namespace: str = "default") -> TrainingJob:
        return self._patch(name, namespace, {"cancel": True})

    def suspend(self, name: str, namespace: str = "default") -> TrainingJob:
        return self._patch(name, namespace, {"suspend": True})

    def resume(self, name: str, namespace: str = "default") -> TrainingJob:
        return self._patch(name, namespace, {"suspend": False})

    def retry(self, name: str, namespace: str = "default") -> TrainingJob:
        """Queue the failed indices of an array again. Raises `InvalidSpec` if it is none, `Conflict` if none has
        failed."""
        return TrainingJob.model_validate(self._daemon.request("POST", f"{_job_url(namespace, name)}/retry"))

    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob:
        """Change the number of pods of roles. Raises `InvalidSpec`, `NotFound` RoleNotFound, `Conflict` if the job is
        finished."""
        return TrainingJob.model_validate(
            self._daemon.request("POST", f"{_job_url(namespace, name)}/replicas", dict(replicas))
        )

    def queues(self) -> list[dict[str, Any]]:
        return [queue_row(queue) for queue in read_list(self.read, "queues", QueueSummaryList).items]

    def flavors(self) -> list[Flavor]:
        """All flavors."""
        return [Flavor.model_validate(flavor) for flavor in self._daemon.request("GET", f"/v{API_VERSION}/flavors")]

    def nodes(self) -> list[dict[str, Any]]:
        return [node_row(node) for node in read_list(self.read, "nodes", NodeSummaryList).items]

    def usage(self, parameters: Mapping[str, str], namespace: str | None = None) -> Listing[UsageSummary]:
        return read_list(self.read, "usage", UsageSummaryList, namespace, parameters=parameters)

    def read(self, url: str) -> Any:
        return self._daemon.request("GET", url)

    def drain(self, node: str) -> NodeJobs:
        """Raises `Refused`, since all nodes are this host; `NotFound` for an unknown node."""
        known = [str(row["name"]) for row in self.nodes()]
        if node not in known:
            names = f"existing nodes: {', '.join(known[:8])}" + (
                f" and {len(known) - 8} more" if len(known) > 8 else ""
            )
            raise NotFound(f"node {node!r} does not exist; {did_you_mean(node, known, names)}", field="node")
        is_here = "is this host" if len(known) == 1 else "is virtual: all nodes here are this host"
        raise Refused(
            f"node {node!r} {is_here}; to stop all jobs: muster local down --force", reason="DrainUnsupported"
        )

    def undrain(self, node: str) -> None:
        self.drain(node)

    def jobs_on_node(self, node: str) -> NodeJobs:
        return self.drain(node)

    def snapshot(self) -> bytes:
        return json.dumps(self._daemon.request("GET", f"/v{API_VERSION}/snapshot")).encode()

    # ---- pods, logs and events of a job

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return list(self._daemon.request("GET", f"{_job_url(namespace, name)}/events"))

    def pods(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """[{name, role, index, attempt, node, phase, gpus, exitCode, reason}]."""
        return list(self._pods_response(name, namespace)["pods"])

    def run_dir(self, name: str, namespace: str = "default") -> Path:
        """The run folder; it is created when the first replica starts."""
        return Path(self._pods_response(name, namespace)["runDir"])

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return rank_heartbeats(self.run_dir(name, namespace))

    def capture(self, spec: TraceCaptureSpec, namespace: str = "default") -> Generator[TraceCapture, None, None]:
        """Profile steps of a running job; yields the capture after each change, until it is finished. Closing the
        iterator withdraws it. Raises `Refused` JobNotRunning, CaptureRunning."""
        from muster.capture.local import run_capture

        job = self.job(spec.job, namespace)
        if job.status.phase != "Running":
            raise Refused(f"job {spec.job} must be Running; it is {job.status.phase}", reason="JobNotRunning")
        meta = job.metadata
        capture_id = f"{spec.job}-{secrets.token_hex(4)}"

        def problem() -> str:
            try:
                now = self.job(spec.job, namespace)
            except NotFound:
                return "the job was deleted"
            if now.metadata.uid != meta.uid or now.status.phase != "Running":
                return f"the job is {now.status.phase}, not Running"
            return ""

        about = ObjectMeta(name=capture_id, namespace=namespace, creation_timestamp=time.time())
        for status in run_capture(self.run_dir(spec.job, namespace), capture_id, spec, problem):
            yield TraceCapture(metadata=about, spec=spec, status=status)

    def stacks(self, name: str, namespace: str = "default") -> JobStacks:
        from muster.capture.protocol import JobStacks
        from muster.capture.stacks import collect_stacks, describe_stacks

        job = self.job(name, namespace)
        if job.status.phase != "Running":
            raise Refused(f"job {name} must be Running; it is {job.status.phase}", reason="JobNotRunning")

        def runs() -> bool:
            now = self.job(name, namespace).status
            return (now.phase, now.attempt) == ("Running", job.status.attempt)

        run_dir, request = self.run_dir(name, namespace), f"s{secrets.token_hex(4)}"
        found = collect_stacks(run_dir, request, job.status.attempt, runs)
        return JobStacks(describe_stacks(found), tuple(found))

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        """The job now and after every change, until it is finished and its last process has ended. Raises `NotFound`
        if it is deleted, even if a new job has its name."""
        mark = uid = ""
        while True:
            query = urlencode({"after": mark, "timeout": _WATCH_TIMEOUT_S})
            response = self._daemon.request(
                "GET", f"{_job_url(namespace, name)}?{query}", timeout_s=3 * _WATCH_TIMEOUT_S
            )
            if response["mark"] == mark:
                continue
            mark = response["mark"]
            job = TrainingJob.model_validate(response["job"])
            if job.metadata.uid != (uid := uid or job.metadata.uid):
                raise NotFound(f"job {namespace}/{name} was deleted")
            yield job
            if has_terminated(job.status):
                return

    def log_attempts(self, name: str, namespace: str = "default") -> dict[tuple[str, int], int]:
        return newest_log_attempts(self.run_dir(name, namespace) / "logs")

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        """Lines of one replica's log; times are exact to about a second.

        Raises `NotFound` for a role or index that the job does not have (and did not have in the given attempt), and
        for an attempt that has not begun.
        """
        attempt, until, follow = options.attempt, options.until, options.follow
        response = self._pods_response(name, namespace)
        job = TrainingJob.model_validate(response["job"])
        run_dir = Path(response["runDir"])
        if attempt is None or not has_log(run_dir / "logs", role, index, attempt):
            check_replica(job, role, index)
        if attempt is not None and not follow:  # following waits for an attempt to begin
            check_attempt(job, attempt)
        number = newest_attempt(run_dir, job, role, index, follow) if attempt is None else attempt
        folder = PodFolder(Path(response["podsDir"]) / f"{role}-{index}.attempt-{number}")
        path = log_path(run_dir, role, index, number)
        begin, end = 0, None
        if options.since is not None or until is not None:
            begin, end = whole_lines(path, *byte_range(folder.log_sizes(), options.since, until), follow)
        if options.tail_lines is not None:
            begin = tail_offset(path, begin, end, options.tail_lines)

        def has_ended() -> bool:
            if until is not None and time.time() > until + 1.0:
                return True
            return self._attempt_finished(job, role, index, number)

        return read_lines(path, begin, end, has_ended if follow and end is None else None)

    def run_in_pod(self, name: str, namespace: str, pod: tuple[str, int], command: Sequence[str]) -> int:
        """Run a command with the environment and in the folder of a (role, index). Returns its exit code. Raises
        `NotFound` for a command that does not exist."""
        response = self._pods_response(name, namespace)
        job = TrainingJob.model_validate(response["job"])
        check_replica(job, *pod)
        folder = PodFolder(Path(response["podsDir"]) / f"{pod[0]}-{pod[1]}.attempt-{job.status.attempt}")
        started = folder.read_spec()
        try:
            return subprocess.run(list(command), env=started["env"], cwd=started["cwd"], check=False).returncode
        except FileNotFoundError as error:
            raise NotFound(f"{command[0]!r} is not in the PATH of the pod", reason="CommandNotFound") from error

    # ---- helpers

    def _pods_response(self, name: str, namespace: str) -> dict[str, Any]:
        """The job, its folders and its pods."""
        return dict(self._daemon.request("GET", f"{_job_url(namespace, name)}/pods"))

    def _attempt_finished(self, followed: TrainingJob, role: str, index: int, attempt: int) -> bool:
        try:
            response = self._pods_response(followed.metadata.name, followed.metadata.namespace or "default")
        except NotFound:
            return True
        job = TrainingJob.model_validate(response["job"])
        if job.metadata.uid != followed.metadata.uid:
            return True
        pods = [
            pod for pod in response["pods"] if (pod["role"], pod["index"], pod["attempt"]) == (role, index, attempt)
        ]
        return is_complete(job, pods, attempt)

    def _patch(self, name: str, namespace: str, fields: dict[str, Any]) -> TrainingJob:
        return TrainingJob.model_validate(self._daemon.request("POST", _job_url(namespace, name), fields))


def _job_url(namespace: str, name: str) -> str:
    return f"/v{API_VERSION}/jobs/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _with_environments(items: Sequence[AnyObject]) -> dict[str, Any]:
    """The request body; the environments of jobs are sent beside the objects, since objects are printed."""
    environments = [submitter_environment(item) if isinstance(item, TrainingJob) else None for item in items]
    return {"objects": [_to_json(item) for item in items], "environments": environments}


def _to_json(item: AnyObject) -> dict[str, Any]:
    return item.model_dump(mode="json", by_alias=True, exclude_none=True)
