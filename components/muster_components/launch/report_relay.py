"""Puts what programs report (`muster_components.trainer.reports`) into the heartbeats and metrics of their ranks.

An instrumented rank does that itself, once it has made a step of an optimizer: then its heartbeat has an
`optimizer_step`. For other programs the launcher does. The loss of a program that reports none is reported for it, from
what it logs (`muster_components.launch.logged_losses`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from muster_components.launch.logged_losses import LoggedLosses
from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankProcess
from muster_components.trainer.regular_files import append_line, encode_line, read_json, replace_file
from muster_components.trainer.reports import ReportReader

POLL_S = 1.0
_MAX_HEARTBEAT_BYTES = 64 * 1024


class ReportRelay:
    """The reports of the ranks of this pod."""

    def __init__(self, run_dir: Path, layout: RankLayout) -> None:
        self._run_dir = run_dir
        self._layout = layout
        self._readers: dict[int, ReportReader] = {}
        self._lock = threading.Lock()
        self._logged: LoggedLosses | None = None
        with contextlib.suppress(OSError):  # programs of any language append to a file in it
            (run_dir / "reports").mkdir(parents=True, exist_ok=True)

    def report_file(self, rank: int) -> Path:
        """Where a rank's program reports in this attempt."""
        return self._run_dir / "reports" / f"rank-{rank}.attempt-{self._layout.attempt}.jsonl"

    def append(self, rank: int, report: Mapping[str, Any]) -> None:
        """Add a report of a rank; errors are ignored."""
        path = self.report_file(rank)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            append_line(path, encode_line(report))

    def start(self, ranks: Mapping[int, RankProcess]) -> None:
        """Relay in a thread, while the ranks run."""
        if self._layout.rank(0) == 0:  # others rarely log, and the loss of rank 0 is shown
            self._logged = LoggedLosses((self._run_dir, Path.cwd()), ranks[0].process.pid)
        threading.Thread(target=self._watch, args=(ranks,), name="reports", daemon=True).start()

    def _watch(self, ranks: Mapping[int, RankProcess]) -> None:
        while any(process.running for process in ranks.values()):
            time.sleep(POLL_S)
            self.relay(ranks)

    def relay(self, ranks: Iterable[int]) -> None:
        """Write heartbeats and metrics of the ranks that have reported since the last call."""
        with self._lock:
            for rank in ranks:
                reader = self._readers.setdefault(rank, ReportReader(self.report_file(rank)))
                has_reported = reader.read(time.time())
                reader.compact()
                if rank == 0 and self._logged is not None and "loss" not in reader.own_fields:
                    self._add_logged(self._logged, reader)
                    has_reported |= reader.read(time.time())
                if has_reported:
                    with contextlib.suppress(OSError):
                        self._write(rank, reader)

    def _add_logged(self, logged: LoggedLosses, reader: ReportReader) -> None:
        """Report the loss that rank 0 has logged, and its step if nothing else counts steps."""
        found = logged.newest(time.monotonic())
        if found is None:
            return
        report = {"loss": found.value, "at": time.time(), "source": found.tag}
        is_instrumented = "collectives" in self._own_heartbeat(0)
        if not is_instrumented and "step" not in reader.own_fields and "sample" not in found.tag.lower():
            report["step"] = found.step
        self.append(0, report)

    def _write(self, rank: int, reader: ReportReader) -> None:
        path = self._heartbeat_path(rank)
        heartbeat = self._own_heartbeat(rank)
        if heartbeat.get("optimizer_step") is not None:
            return
        now, known = time.time(), reader.newest
        path.parent.mkdir(parents=True, exist_ok=True)
        phase = "done" if heartbeat.get("phase") == "done" else "train"
        heartbeat.update({**known.heartbeat_fields(None), "phase": phase, "at": now})
        replace_file(path, encode_line(heartbeat))
        metrics = self._run_dir / "metrics" / f"rank-{rank}.jsonl"
        metrics.parent.mkdir(parents=True, exist_ok=True)
        line = {"attempt": self._layout.attempt, "step_time_s": known.step_time_s, "tokens": known.tokens}
        text = b"".join(
            encode_line({"step": step, "loss": loss, "at": at, **line})
            for step, (loss, at) in reader.take_losses().items()
            if step is not None
        )
        if text:
            append_line(metrics, text)

    def _heartbeat_path(self, rank: int) -> Path:
        return self._run_dir / "heartbeats" / f"rank-{rank}.json"

    def _own_heartbeat(self, rank: int) -> dict[str, Any]:
        """That of this attempt, or a new one."""
        with contextlib.suppress(OSError, ValueError):
            found = read_json(self._heartbeat_path(rank), _MAX_HEARTBEAT_BYTES)
            if isinstance(found, dict) and found.get("attempt") == self._layout.attempt:
                return found
        return {"rank": rank, "world_size": self._layout.world_size, "attempt": self._layout.attempt}
