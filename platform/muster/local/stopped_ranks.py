"""Where the ranks of an attempt were that did not stop, stalled, or were stopped without saving a checkpoint, from what
their launchers saved in the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.capture.stacks import describe_stacks, read_stacks
from muster.heartbeats.parse import finite_number, newest_checkpoint
from muster.kinds.trainingjob.failure import has_stalled
from muster.local.run_folder import read_json
from muster.tracing.read.flight_recorder import SIGNAL_REQUEST, STOP_REQUEST
from muster.tracing.shared_folder import SharedFolder

_MAX_SENTENCE = 1500


@dataclass(frozen=True, slots=True)
class StoppedRanks:
    """`event`: the text of an Event, empty if the lifecycle reports them; `status`: the job's, with where they were."""

    event: str
    status: TrainingJobStatus


def find_stopped_ranks(job: TrainingJob, attempt: int, run_dir: Path) -> StoppedRanks | None:
    """Of an attempt of which no pod runs any more; None if nothing is to be said about its ranks."""
    run, stop = SharedFolder(run_dir), job.status.last_stop
    hung, has_hung = read_stacks(run, STOP_REQUEST, attempt), True
    is_lost = stop is not None and stop.attempt == attempt and not _has_saved(run_dir, since=stop.at)
    if not hung:
        has_hung = has_stalled(job, attempt)
        hung = read_stacks(run, SIGNAL_REQUEST, attempt) if has_hung or is_lost else []
    if not hung:
        return None
    sentence, status = describe_stacks(hung), job.status
    if stop is not None and is_lost:
        known = stop.model_copy(update={"ranks": sentence[:_MAX_SENTENCE]})
        status = status.model_copy(update={"last_stop": known})
    did = "stalled" if has_stalled(job, attempt) else "did not stop"
    event = f"ranks of attempt {attempt} {did}: {sentence}; see {run_dir / 'stacks'}" if has_hung else ""
    return StoppedRanks(event, status)


def _has_saved(run_dir: Path, *, since: float) -> bool:
    announced, watched = read_json(run_dir / "checkpoints" / "latest"), read_json(run_dir / "checkpoint.json")
    newest = newest_checkpoint(announced or None, watched or None) or {}
    reported = read_json(run_dir / "heartbeats" / "rank-0.json").get("checkpoint_at")
    return any((finite_number(at) or 0.0) >= since for at in (newest.get("at"), reported))
