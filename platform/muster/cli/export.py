"""The command `export`: the newest checkpoint of a run of Muster's trainer as a folder of Hugging Face."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import PATH, PlainOption, complete_job_names, json_option, namespace_option
from muster.cli.output import print_json, print_text, usage_error
from muster.cli.runs import resolve_run
from muster.errors import Refused

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob


@click.command("export")
@click.argument(
    "run",
    metavar="JOB|FOLDER",
    shell_complete=complete_job_names,
    help="A job whose run folder is on this host, a run folder, or a checkpoint.",
)
@click.option(
    "-o", "--output", cls=PlainOption, type=PATH, required=True, metavar="DIR", help="Folder to write; required."
)
@namespace_option
@json_option
def export(run: str, output: Path, namespace: str | None, as_json: bool) -> None:
    """Write the newest checkpoint of a recipe as a folder of Hugging Face: config.json and safetensors.

    Needs torch.
    """
    source, _ = resolve_run(run, namespace, _refuse_remote)
    trainer = "muster_components.trainer"  # by name: no package of `muster` needs the trainer's
    expected: Any = importlib.import_module(f"{trainer}.errors").TrainerError
    try:
        checkpoint, parameters = importlib.import_module(f"{trainer}.export").export(source, output)
    except ImportError as error:
        raise Refused(f"export needs torch and the extra hf of Muster: {error}", reason="NotInstalled") from error
    except expected as error:
        usage_error(str(error), run)
    if as_json:
        print_json([{"checkpoint": str(checkpoint), "folder": str(output), "parameters": parameters}])
    else:
        print_text(f"{parameters:,} parameters of {checkpoint} are in {output}")


def _refuse_remote(job: TrainingJob) -> Path:
    message = f"the run folder of job {job.metadata.name} is not on this host; copy it, or run this command in a pod"
    raise Refused(f"{message} that mounts it: muster export DIR -o FOLDER", reason="RunNotAccessible")
