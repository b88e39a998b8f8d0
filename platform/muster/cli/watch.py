"""The command `watch`: follows a job from the queue to its report; `submit --wait` waits for the end of jobs.

On a terminal a status block is redrawn; into a pipe a line is printed for each change. Both end with the findings of
the report and its path as the last line. The exit code is that of the job's end.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import connect, job_argument, json_option, namespace_option, split_job_name
from muster.cli.output import CommandExit, ExitCode, console, print_json, print_note
from muster.client import ClusterClient

if TYPE_CHECKING:
    from rich.console import Console

    from muster.api.spec import TrainingJob, WorkloadRecord
    from muster.cli.views.watch import WatchFrame

_POLL_S = 0.5
_OBJECT_POLL_S = 1.0
REPORT_TIMEOUT_S = 930.0
"""The local daemon gives a report 900 s."""


@click.command()
@job_argument
@namespace_option
@click.option("--report/--no-report", default=True, help="Build and show the report at the end.")
@json_option
def watch(job: str, namespace: str | None, report: bool, as_json: bool) -> None:
    """Watch one job until it ends. The exit code is 0 if it succeeded, else 1."""
    watch_job(connect(), *split_job_name(job, namespace), report=report, as_json=as_json)


def watch_job(client: ClusterClient, name: str, namespace: str, *, report: bool = True, as_json: bool = False) -> None:
    """Show a job until it has ended. Raises `CommandExit` if it did not succeed, `NotFound` if it does not exist."""
    from muster.api.spec import WorkloadRecord
    from muster.cli.views.job_text import deleted_message, is_over
    from muster.errors import NotFound

    out = console()
    found = client.job_or_object(name, namespace)  # raises NotFound before anything is drawn
    if isinstance(found, WorkloadRecord):
        watch_object(client, found, as_json=as_json)
        return
    frames = _watch_frames(client, name, namespace)
    show = _last_frame if as_json else _draw_live if out.is_terminal else _print_changes
    with _hint_on_interrupt(name, namespace):
        last = show(frames, out)
    if last is None or not is_over(last.job):
        raise NotFound(deleted_message(name, namespace, None if last is None else last.job))
    if not as_json:
        _print_end(last, out)
    run_dir = _run_dir_if_known(client, name, namespace)
    job = _wait_for_report(client, last.job) if report and run_dir is not None else last.job
    if as_json:
        print_json([job])
    elif report:
        _print_report(client, job, run_dir, out)
    if last.job.status.phase != "Succeeded":
        raise CommandExit(ExitCode.JOB_FAILED)


def watch_object(client: ClusterClient, record: WorkloadRecord, *, as_json: bool = False) -> None:
    """Print a line for each change of an object of another kind until it has ended. Raises `CommandExit` if it did not
    succeed, `NotFound` if it is deleted."""
    from muster.cli.views.object_details import object_line
    from muster.errors import NotFound
    from muster.workload.conditions import has_terminated

    name, namespace = record.spec.object_ref.name, record.metadata.namespace or "default"
    uid, out, before = record.spec.object_ref.uid, console(), ""
    with _hint_on_interrupt(name, namespace):
        while True:
            line = object_line(record, time.time())
            if line != before and not as_json:
                out.print(line, soft_wrap=True, markup=False)
                out.file.flush()
            before = line
            if has_terminated(record.status):
                break
            time.sleep(_OBJECT_POLL_S)
            found = client.job_or_object(name, namespace)
            if not isinstance(found, type(record)) or found.spec.object_ref.uid != uid:
                raise NotFound(f"{namespace}/{name} was deleted")
            record = found
    if as_json:
        print_json([record])
    if record.status.phase != "Succeeded":
        raise CommandExit(ExitCode.JOB_FAILED)


def wait_for_end(client: ClusterClient, name: str, namespace: str, *, quiet: bool) -> TrainingJob:
    """Return the job once it has ended; while it is pending and at each new attempt, print changes as `watch` does,
    unless `quiet`. Raises `NotFound` if it is deleted."""
    from muster.cli.views.job_text import deleted_message, is_over
    from muster.errors import NotFound

    last: TrainingJob | None = None
    try:
        with _hint_on_interrupt(name, namespace):
            from muster.cli.views.watch import WatchFrame, change_lines

            before: WatchFrame | None = None
            for last in client.watch(name, namespace):
                if is_over(last):
                    return last
                frame = WatchFrame(last, None, time.time())
                is_new_attempt = before is not None and last.status.attempt > before.job.status.attempt
                if not quiet and (is_new_attempt or last.status.phase == "Pending"):
                    for line in change_lines(before, frame):
                        console().print(line, soft_wrap=True)
                before = frame
    except NotFound as error:
        raise NotFound(deleted_message(name, namespace, last)) from error
    raise NotFound(deleted_message(name, namespace, last))


@contextmanager
def _hint_on_interrupt(name: str, namespace: str) -> Iterator[None]:
    """Within this context, an interrupt prints that the job continues."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"the job continues; to stop it: muster cancel {namespace}/{name}", file=sys.stderr)
        raise


def print_end_and_reason(job: TrainingJob) -> None:
    """One line; for a job that did not succeed also the reason, exit code, last log line and the next command."""
    from muster.cli.views import job_text
    from muster.kinds.trainingjob.failure_log import last_log_line

    out = console()
    out.print(f"{job_text.qualified_name(job.metadata)} {job.status.phase}", markup=False)
    if job.status.phase == "Succeeded":
        return
    failure, last = job.status.last_failure, last_log_line(job.status.last_failure)
    facts = [
        job_text.reason_sentence(job.status),
        f"exit code {failure.exit_code}" if failure is not None and failure.exit_code is not None else "",
        f"last line of the log: {last}" if last else "",
        f"try: {advice}" if (advice := job_text.what_to_try_next(job.status)) else "",
        f"see: muster describe {job_text.command_argument(job)}",
    ]
    for fact in facts:
        if fact:
            out.print(f"  {fact}", soft_wrap=True, markup=False)


def _watch_frames(client: ClusterClient, name: str, namespace: str) -> Iterator[WatchFrame]:
    """A frame at every change of the job and twice a second, until the job has ended or was deleted."""
    from muster.cli.views.job_text import is_over
    from muster.cli.views.watch import WatchFrame
    from muster.errors import NotFound
    from muster.heartbeats.progress import current_heartbeat, final_heartbeat, leading_heartbeat

    changes: queue.Queue[TrainingJob | Exception | None] = queue.Queue()

    def read() -> None:
        try:
            for job in client.watch(name, namespace):
                changes.put(job)
                if is_over(job):
                    break
            changes.put(None)
        except NotFound:
            changes.put(None)
        except Exception as error:  # raised again in the main thread
            changes.put(error)

    threading.Thread(target=read, daemon=True).start()
    job: TrainingJob | None = None
    while True:
        try:
            change = changes.get(timeout=_POLL_S)
            if isinstance(change, Exception):
                raise change
            if change is None:
                return
            job = change
        except queue.Empty:
            pass
        if job is not None:
            heartbeat = None
            if is_over(job):
                leading = leading_heartbeat(client.heartbeats(name, namespace))
                heartbeat = None if leading is None else final_heartbeat(leading)
            elif job.status.phase == "Running":
                heartbeat = current_heartbeat(client.heartbeats(name, namespace), job.status.attempt)
            yield WatchFrame(job, heartbeat, time.time())


def _last_frame(frames: Iterator[WatchFrame], out: Console) -> WatchFrame | None:
    last = None
    for frame in frames:
        last = frame
    return last


def _draw_live(frames: Iterator[WatchFrame], out: Console) -> WatchFrame | None:
    """Draw on a terminal; the last frame remains visible."""
    from rich.live import Live

    from muster.cli.views.watch import LossCurve, change_lines, render_frame

    last, curve = None, LossCurve()
    with Live(console=out, auto_refresh=False, transient=True) as live:
        for frame in frames:
            for line in change_lines(last, frame):
                live.console.print(line)
            curve = curve.with_heartbeat(frame.heartbeat)
            live.update(render_frame(frame, curve, out.width), refresh=True)
            last = frame
    if last is not None and last.heartbeat is not None:
        out.print(render_frame(last, curve, out.width))
    return last


def _print_changes(frames: Iterator[WatchFrame], out: Console) -> WatchFrame | None:
    """Print lines into a pipe: changes at once, progress every `PROGRESS_INTERVAL_S`."""
    from muster.cli.views.job_text import is_over
    from muster.cli.views.watch import change_lines
    from muster.heartbeats.progress import ProgressLines

    last, progress = None, ProgressLines(PROGRESS_INTERVAL_S)
    for frame in frames:
        for line in change_lines(last, frame):
            out.print(line, soft_wrap=True)
        progress_text = progress.next_line(frame.heartbeat, frame.now, finished=is_over(frame.job))
        if progress_text is not None:
            out.print(progress_text, soft_wrap=True, markup=False)
        out.file.flush()
        last = frame
    return last


PROGRESS_INTERVAL_S = 5.0


def _print_end(frame: WatchFrame, out: Console) -> None:
    from muster.cli.views.watch import end_summary

    out.print(end_summary(frame))


def _run_dir_if_known(client: ClusterClient, name: str, namespace: str) -> Path | None:
    """The run folder on this host. None if the cluster no longer answers: that must not change the exit code."""
    from muster.errors import ClusterError, NotFound

    try:
        return client.run_dir(name, namespace)
    except (NotFound, ClusterError):
        return None


def _wait_for_report(client: ClusterClient, job: TrainingJob) -> TrainingJob:
    """The job once its report is built; the cluster builds the report of a traced job after its end."""
    from muster.errors import NotFound

    until = time.monotonic() + REPORT_TIMEOUT_S
    while _awaits_report(job) and time.monotonic() < until:
        time.sleep(_POLL_S)
        try:
            job = client.job(job.metadata.name, job.metadata.namespace or "default")
        except NotFound:  # deleted meanwhile
            break
    return job


def _awaits_report(job: TrainingJob) -> bool:
    return job.spec.trace is not None and job.status.started_at is not None and job.status.traces is None


def _print_report(client: ClusterClient, job: TrainingJob, run_dir: Path | None, out: Console) -> None:
    """Show the report, or build it if the cluster does not; a run without traces and metrics has none.

    A report that cannot be built is a note on stderr and does not change the exit code.
    """
    from muster.cli.analysis import build_and_print, print_report
    from muster.errors import InvalidTrace
    from muster.tracing import no_trace_reason

    traces = job.status.traces
    if run_dir is None:  # inside a cluster
        from muster.cluster_client.jobs import report_command

        command = report_command(job, getattr(client, "context_name", ""))
        if command is not None:
            out.print(f"to build the report: {command}", soft_wrap=True, markup=False)
        return
    try:
        if traces is not None and traces.report:
            print_report(Path(traces.report), out)
        elif job.spec.trace and traces and not traces.files and not any((run_dir / "traces").rglob("rank-*")):
            heartbeats = client.heartbeats(job.metadata.name, job.metadata.namespace or "default")
            reason = no_trace_reason(job.spec.trace.start_step, heartbeats)
            print_note(f"no report: no trace was recorded: {reason}")
        elif traces is not None or _awaits_report(job):
            print(f"no report: the build failed; see {run_dir / 'report' / 'build.log'}", file=sys.stderr)
        elif any((run_dir / "metrics").glob("*.jsonl")) or any((run_dir / "traces").glob("*.json.gz")):
            build_and_print(run_dir, out, job=job.metadata.name)
    except (InvalidTrace, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print_note(f"no report: {error}")
