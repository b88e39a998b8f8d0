"""The command `diff`: what differs between two jobs, from what stays with their runs."""

from __future__ import annotations

import difflib
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import complete_job_names, connect, json_option, namespace_option, split_job_name
from muster.cli.output import print_json, print_renderable, print_text

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob
    from muster.client import ClusterClient

_MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A job, its submission/run.json and copied code if they are on this host, and its loss and speed."""

    job: TrainingJob
    record: Mapping[str, Any] = field(default_factory=dict)
    code: Path | None = None
    measured: Mapping[str, str] = field(default_factory=dict)


@click.command("diff")
@click.argument("first", metavar="JOB", help="A job: NAME or NAMESPACE/NAME.", shell_complete=complete_job_names)
@click.argument("second", metavar="JOB", help="A job: NAME or NAMESPACE/NAME.", shell_complete=complete_job_names)
@click.option("--code", "with_code", is_flag=True, help="Also show the changes of the files.")
@namespace_option
@json_option
def diff_jobs(first: str, second: str, with_code: bool, namespace: str | None, as_json: bool) -> None:
    """Show what differs between two jobs: code, arguments, versions, loss and speed."""
    from rich.table import Table
    from rich.text import Text

    client = connect()
    with tempfile.TemporaryDirectory() as scratch:
        before, after = (
            _read(client, *split_job_name(name, namespace), Path(scratch, side))
            for side, name in (("first", first), ("second", second))
        )
        rows = differences(before, after)
        changes = list(code_changes(before, after)) if with_code else []
    if as_json:
        print_json([*rows, *({"field": "code changes", "first": "", "second": line} for line in changes)])
        return
    if not rows:
        print("No difference.")
    else:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True, style="dim")
        table.add_column(before.job.metadata.name, overflow="fold", ratio=1)
        table.add_column(after.job.metadata.name, overflow="fold", ratio=1)
        for row in rows:
            table.add_row(row["field"], Text(row["first"]), Text(row["second"]))
        print_renderable(table)
    for line in changes:
        print_text(line)


def differences(before: ComparedRun, after: ComparedRun) -> list[dict[str, str]]:
    """{field, first, second} of everything that differs; empty text: not known, or not there."""
    facts = (_facts(before), _facts(after))
    names = list(dict.fromkeys([*facts[0], *facts[1]]))
    rows = [{"field": name, "first": facts[0].get(name, ""), "second": facts[1].get(name, "")} for name in names]
    return [row for row in rows if row["first"] != row["second"]]


def _facts(run: ComparedRun) -> dict[str, str]:
    spec, record = run.job.spec, run.record
    facts = {"queue": spec.queue}
    if record:
        facts["command"] = " ".join(map(str, record.get("command") or ()))
        facts["folder"] = str(record.get("folder") or "")
        facts["code"] = str(record.get("code") or "")
    for role in spec.roles:
        container = role.template.spec.containers[0]
        if not record:
            facts[f"command of {role.name}"] = " ".join([*container.command, *container.args])
        if container.image:
            facts[f"image of {role.name}"] = container.image
        facts[f"pods of {role.name}"] = str(role.replicas)
        for name, amount in container.resources.requests.items():
            facts[f"{name} of {role.name}"] = str(amount)
        facts |= {f"env {one.name}": _shown(one.name, one.value or "") for one in container.env}
    if files := _digests(run):
        facts |= {f"file {name}": digest for name, digest in files.items()}
    versions = record.get("versions")
    facts |= {f"version of {name}": str(found) for name, found in (versions or {}).items()}
    versions = record.get("submitterVersions")
    facts |= {f"version of {name} where submitted": str(found) for name, found in (versions or {}).items()}
    return {**facts, "phase": run.job.status.phase, **run.measured}


def _shown(name: str, value: str) -> str:
    from muster.api.env_vars import redact

    return redact(name, value)


def _digests(run: ComparedRun) -> dict[str, str]:
    """Short digests of the files that were copied."""
    import hashlib

    if run.code is None:
        return {}
    files = ((str(name), run.code / str(name)) for name in run.record.get("files") or ())
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:8] for name, path in files if path.is_file()}


def code_changes(before: ComparedRun, after: ComparedRun) -> Iterator[str]:
    """The changes of the copied files as a unified diff."""
    names = sorted({str(name) for run in (before, after) for name in run.record.get("files") or ()})
    for name in names:
        texts = [_text(run, name) for run in (before, after)]
        lines = difflib.unified_diff(texts[0], texts[1], f"a/{name}", f"b/{name}", lineterm="")
        yield from lines


def _text(run: ComparedRun, name: str) -> list[str]:
    if run.code is None or name not in (run.record.get("files") or ()):
        return []
    try:
        with (run.code / name).open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _read(client: ClusterClient, name: str, namespace: str, scratch: Path) -> ComparedRun:
    """`scratch`: a folder of its own, for the archive of a run in a cluster."""
    from muster.local.submissions import CODE, FOLDER, read_archived_record, read_record

    job, run_dir = client.job(name, namespace), client.run_dir(name, namespace)
    if run_dir is None:
        from muster.cluster_client.client import KubernetesClusterClient
        from muster.cluster_client.workspace import unpack

        archive = client.archive(name, namespace) if isinstance(client, KubernetesClusterClient) else None
        if archive is None:
            return ComparedRun(job, measured=_measured_from_status(job))
        unpack(archive, scratch)
        return ComparedRun(job, read_archived_record(scratch), scratch, _measured_from_status(job))
    return ComparedRun(job, read_record(run_dir), run_dir / FOLDER / CODE, _measured(job, run_dir))


def _measured(job: TrainingJob, run_dir: Path) -> dict[str, str]:
    """Step, loss at the last step, and the median time of the second half of the steps."""
    from muster.tracing.runs.step_curve import read_step_curve
    from muster.tracing.shared_folder import SharedFolder

    try:
        curve = read_step_curve(SharedFolder(run_dir))
    except OSError:
        curve = []
    if not curve:
        return _measured_from_status(job)
    losses = [loss for _, loss, _ in curve if loss is not None]
    times = [seconds for _, _, seconds in curve[len(curve) // 2 :] if seconds is not None]
    found = {"last step": str(curve[-1][0])}
    if losses:
        found["loss"] = f"{losses[-1]:.4g}"
    if times:
        found["step time"] = f"{statistics.median(times) * 1000:.4g} ms"
    return found


def _measured_from_status(job: TrainingJob) -> dict[str, str]:
    from muster.heartbeats.progress import heartbeat_from_status

    if job.status.progress is None:
        return {}
    heartbeat = heartbeat_from_status(job.status.progress)
    words = {
        "last step": heartbeat.get("step"),
        "loss": heartbeat.get("loss"),
        "tokens/s": heartbeat.get("tokens_per_s"),
    }
    return {
        word: f"{value:.4g}" if isinstance(value, float) else str(value)
        for word, value in words.items()
        if value is not None
    }
