"""A job that a program follows: its state, logs, metrics, traces and report."""

from __future__ import annotations

import html
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from muster.client import ClusterClient, LogOptions
from muster.errors import MusterError

if TYPE_CHECKING:
    import pandas

    from muster.api.spec import TraceCapture, TrainingJob
    from muster.tracing.analysis.run_analysis import Report

_POLL_S = 0.5


class Job:
    """A TrainingJob. `object` has all of it as it was last read, with the fields of `muster describe --json`; `phase`
    and the methods read it anew. Methods raise the errors of `muster.errors`, `NotFound` once the job was deleted."""

    def __init__(self, client: ClusterClient, found: TrainingJob) -> None:
        self._client = client
        self.object = found

    @property
    def name(self) -> str:
        return self.object.metadata.name

    @property
    def namespace(self) -> str:
        return self.object.metadata.namespace or "default"

    @property
    def phase(self) -> str:
        """Such as `Pending`, `Running`, `Succeeded`."""
        return self.refresh().object.status.phase

    @property
    def reason(self) -> str:
        """Why it waits or failed, in a sentence, as `muster describe` has it; empty if there is nothing to say."""
        from muster.cli.views.job_text import reason_sentence

        return reason_sentence(self.refresh().object.status)

    def refresh(self) -> Job:
        """Read it again."""
        self.object = self._client.job(self.name, self.namespace)
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Return once it has ended, also if it failed. Raises TimeoutError after `timeout` seconds."""
        from muster.cli.views.job_text import is_over

        end = math.inf if timeout is None else time.monotonic() + timeout
        while not is_over(self.refresh().object):
            if time.monotonic() >= end:
                raise TimeoutError(f"job {self.name} has not ended after {timeout:g} s: {self.object.status.phase}")
            time.sleep(min(_POLL_S, max(end - time.monotonic(), 0)))
        return self

    def cancel(self) -> None:
        """Stop it: SIGTERM, time for a checkpoint, then SIGKILL."""
        self._client.cancel(self.name, self.namespace)

    def suspend(self) -> None:
        """Stop it after a checkpoint and release its resources."""
        self._client.suspend(self.name, self.namespace)

    def resume(self) -> None:
        """Queue it again after `suspend`."""
        self._client.resume(self.name, self.namespace)

    def logs(
        self, *, rank: int | None = None, grep: str | None = None, attempt: int | None = None, tail: int | None = None
    ) -> str:
        """The log of all pods one after the other, or of one rank; of an attempt, by default the newest with a log.
        `grep`: lines that match this regular expression. `tail`: the last lines of each pod."""
        return "".join(f"{line}\n" for line in self._log_lines(rank, grep, LogOptions(attempt, tail_lines=tail)))

    def follow(self, *, rank: int | None = None, grep: str | None = None) -> Iterator[str]:
        """The lines of the log as they are written, until it ends: of a rank, else of all of them merged."""
        return self._log_lines(rank, grep, LogOptions(follow=True))

    def _log_lines(self, rank: int | None, grep: str | None, options: LogOptions) -> Iterator[str]:
        from muster.cli.logs import LogFilter, merge_lines, place_of_rank, select_pods, with_newest_log_attempt

        role, index = (None, None) if rank is None else place_of_rank(self.refresh().object, rank)
        pods = select_pods(self.object, role, () if index is None else (index,))
        if options.attempt is not None:
            pods = [replace(pod, attempt=options.attempt) for pod in pods]
        elif not options.follow:
            pods = with_newest_log_attempt(pods, self._client.log_attempts(self.name, self.namespace))
        search = LogFilter(options, None if grep is None else re.compile(grep), rank)
        return (line for _, line in merge_lines(self._client, (self.name, self.namespace), pods, search))

    def metrics(self) -> pandas.DataFrame:
        """One row per step, with loss and step time in seconds; where the run folder is on this host also speed, memory
        and time for data, as far as the program reports them. Else at most 300 evenly chosen steps. Needs pandas."""
        import pandas

        from muster.tracing.runs.run_folder import MetricsRecord, read_rank_metrics
        from muster.visibility.reader import decode
        from muster.visibility.requests import CURVES
        from muster.visibility.types import BASE_PATH, JobCurve

        run_dir = self._client.run_dir(self.name, self.namespace)
        if run_dir is None:
            url = f"{BASE_PATH}/namespaces/{quote(self.namespace, safe='')}/{CURVES}/{quote(self.name, safe='')}"
            points = decode(JobCurve, self._client.read(url)).points
            curve = [(one.step, one.loss, one.step_seconds) for one in points]
            return pandas.DataFrame(curve, columns=["step", "loss", "step_time_s"])
        columns = [name for name in MetricsRecord.__struct_fields__ if name != "attempt"]
        found = read_rank_metrics(run_dir)
        rows = {name: getattr(found, name) for name in columns} if found is not None else {}
        return pandas.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")

    def trace(self, steps: int = 5, ranks: str = "all", *, record: Sequence[str] = ("shapes",)) -> JobTrace:
        """Profile the next steps of the running job and return once the traces are there. `ranks` and `record`: as
        `--ranks` and `--with` of `muster trace`. Raises `MusterError` with what went wrong."""
        from muster.api.spec import TraceCaptureSpec
        from muster.capture.ranks import check_ranks

        check_ranks(ranks, "ranks")
        spec = TraceCaptureSpec(job=self.name, kind="Trace", steps=steps, ranks=ranks, options=list(record))  # type: ignore[arg-type]
        with closing(self._client.capture(spec, self.namespace)) as states:
            last = deque(states, maxlen=1).pop()
        if last.status.phase == "Failed":
            raise MusterError(last.status.message, reason=last.status.reason)
        return JobTrace(self, last)

    def run_folder(self) -> Path:
        """The run folder. That of a job in a cluster is fetched from its store, at most 16 GiB; `Refused` says why it
        cannot be."""
        from muster.cli.runs import fetch_run_files

        found = self._client.run_dir(self.name, self.namespace)
        return found if found is not None else fetch_run_files(self.refresh().object)

    def report(self) -> JobReport:
        """Analyse its traces and metrics as `muster report` does."""
        from muster.tracing.report import build

        return JobReport(build(self.run_folder(), name=self.name))

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name} {self.object.status.phase}>"


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Traces of some steps of a job. `capture` has steps, ranks and place of the files."""

    job: Job
    capture: TraceCapture

    def frames(self) -> dict[str, pandas.DataFrame]:
        """The tables of `muster.tracing.frames.analysis_frames` for the newest traces of the job. Needs pandas."""
        from muster.tracing.frames import analysis_frames

        return analysis_frames(self.job.report().content)


@dataclass(frozen=True, slots=True, repr=False)
class JobReport:
    """A report that was built. A notebook shows its page."""

    content: Report

    @property
    def page(self) -> Path:
        """The HTML page, which needs no network."""
        return Path(str(self.content.page))

    def __repr__(self) -> str:
        return f"<JobReport {self.page}>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, without access to the notebook."""
        text = html.escape(self.page.read_text(), quote=True)
        return f'<iframe sandbox="allow-scripts" width="100%" height="900" srcdoc="{text}"></iframe>'
