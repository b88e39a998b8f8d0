"""The command `run`: a job from a command line, without a file, with the code that it was started with."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import PlainOption, connect, json_option, queue_option, selected_context
from muster.cli.output import CommandExit, ExitCode, console, print_json, print_note, usage_error
from muster.client import ClusterClient
from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob
    from muster.cli.run_job import RunOptions, RunProgram
    from muster.local.code_copy import Code

IMAGE_ENV = "MUSTER_IMAGE"
_COUNT = click.IntRange(min=1)
_SOURCE = "options:1"  # where errors say that an object comes from, which has no file here
_OPTIONS = {
    "metadata.name": "--name", "metadata.namespace": "--namespace", "spec.queue": "--queue",
    "spec.dependsOn": "--after", "spec.singleton": "--singleton", "spec.priority": "--priority",
    "spec.maxRuntimeSeconds": "--time", "spec.beginTime": "--begin", "spec.startDeadline": "--deadline",
    "spec.cancelIfUnsatisfiable": "--cancel-if-unsatisfiable", "spec.failurePolicy.maxRestarts": "--max-restarts",
    "spec.roles[0].replicas": "--nodes", "spec.array.indices": "--array", "spec.array.parallelism": "--array",
}  # fmt: skip


def _keep(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """What is run must not be empty; an argument of the program may be."""
    if value[:1] == ("",):
        raise click.BadParameter("must not be empty", ctx, param)
    return value


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...", callback=_keep,
                help="train.py ARGS, -m MODULE ARGS, a shell command, or - for a script from stdin.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the job; default: that of the script and six characters.")
@click.option(
    "-n", "processes", cls=PlainOption, type=_COUNT, metavar="N", help="Processes per node; default: --gpus, else 1."
)
@click.option("--nodes", cls=PlainOption, type=_COUNT, default=1, metavar="N", help="Nodes; default 1.")
@click.option(
    "--gpus", cls=PlainOption, type=click.IntRange(min=0), metavar="N", help="GPUs per node; default: one per process."
)
@queue_option
@click.option("--priority", type=int, metavar="N", help="Priority within the queue; higher first.")
@click.option(
    "--array", metavar="0-99%10", help="Run once for each index, such as 0-99 or 1,5-9:2; %10: at most 10 at a time."
)
@click.option("--time", metavar="2h", help="Maximum run time; enables backfill.")
@click.option(
    "--after",
    multiple=True,
    metavar="JOB",
    help="Start once JOB has succeeded; JOB:any: has ended; JOB:notok: has not succeeded; JOB:corr: index after index"
    " of arrays.",
)
@click.option("--singleton", metavar="KEY", help="One job with this key at a time, in order of submission.")
@click.option("--begin", metavar="2h", help="No start before this time, or for this long.")
@click.option("--deadline", metavar="8h", help="Fail if it has not started by this time, or for this long.")
@click.option("--cancel-if-unsatisfiable", is_flag=True, help="Cancel it if a job of --after ends otherwise.")
@click.option("--namespace", metavar="NAMESPACE", help="Namespace.")
@click.option(
    "--env", multiple=True, metavar="NAME", help="Pass a variable of your environment, or NAME=VALUE. Repeatable."
)
@click.option("--image", metavar="IMAGE", envvar=IMAGE_ENV, help=f"In a cluster: the image; default: {IMAGE_ENV}.")
@click.option(
    "--max-restarts",
    cls=PlainOption,
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Restarts after failures.",
)
@click.option("--copy/--no-copy", default=True, help="Start from a copy of the code as it is now (default).")
@click.option("--oversubscribe", is_flag=True, help="On this host: allow more processes than CPU cores or GPUs.")
@click.option("--dry-run", is_flag=True, help="Print the YAML of the job without submitting it.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@click.option("--follow", "-f", is_flag=True, help="Print the output of the job until it ends; exit code as --wait.")
@json_option
def run(**given: Any) -> None:
    """Run a script, module or command as a job: in the queue, with heartbeats and traces.

    muster run -n 2 -- train.py --lr 0.1
    """
    from muster.cli.run_job import parse_program

    words, folder = tuple(given["command"]), Path.cwd()
    if given["wait"] and given["follow"]:
        usage_error("--follow: must not be used with --wait, which it includes", "--follow")
    if given["array"] is not None and given["follow"]:
        usage_error("--follow: must not be used with --array; use --wait, and muster logs JOB-INDEX", "--follow")
    reads_stdin = words[:1] == ("-",) or words[:2] == ("--", "-")
    program = parse_program(words, sys.stdin.read() if reads_stdin else None, folder)
    client = connect()
    with errors_name_options():
        job = start_run(client, program, given, in_cluster=selected_context() is not None)
    if job is not None:
        _show(client, job, given)


def start_run(
    client: ClusterClient, program: RunProgram, given: dict[str, Any], *, in_cluster: bool
) -> TrainingJob | None:
    """Submit the job of a command line, or print it if this is a dry run. `given`: options and command, by parameter.
    Raises `InvalidSpec`, `Refused`, whose field is that of the job."""
    from muster.cli.run_job import RunOptions

    options = RunOptions(
        given["name"], given["processes"], given["nodes"], given["gpus"], given["queue"], given["priority"],
        given["time"], given["namespace"], given["image"], given["max_restarts"], given["after"], given["singleton"],
        given["begin"], given["deadline"], given["cancel_if_unsatisfiable"], given["array"],
    )  # fmt: skip
    return (_start_in_cluster if in_cluster else _start_on_host)(client, program, options, given)


@contextmanager
def errors_name_options(spelling: Callable[[str], str] = str) -> Iterator[None]:
    """Errors name the option that was given, rather than the field of the job that it became. `spelling` is how it is
    written, if not as on the command line."""
    try:
        yield
    except MusterError as error:
        option = next((option for field, option in _OPTIONS.items() if error.field.startswith(field)), error.field)
        if not option.startswith("-"):
            raise
        message = str(error).removeprefix(f"{_SOURCE}: ").replace(error.field, spelling(option))
        raise type(error)(message, field=spelling(option), reason=error.reason) from error


def _show(client: ClusterClient, job: TrainingJob, given: dict[str, Any]) -> None:
    """Print the name, and what --wait or --follow ask for. Raises `CommandExit` if the job did not succeed."""
    from muster.cli.logs import follow_job
    from muster.cli.views.job_text import command_argument
    from muster.cli.watch import print_end_and_reason, wait_for_end

    key, as_json = (job.metadata.name, job.metadata.namespace or "default"), given["as_json"]
    if as_json and not (given["wait"] or given["follow"]):
        print_json([job])
        return
    if not as_json:
        if given["follow"]:
            print_note(f"job {command_argument(job)} in queue {job.spec.queue}")
        else:
            print(command_argument(job))
            if sys.stdout.isatty():
                console().print(f"to follow it: muster logs -f {command_argument(job)}", style="dim")
    if not (given["wait"] or given["follow"]):
        return
    if given["follow"]:
        follow_job(client, *key)
    ended = wait_for_end(client, *key, quiet=as_json or given["follow"])
    if as_json:
        print_json([ended])
    elif not given["follow"] or ended.status.phase != "Succeeded":
        print_end_and_reason(ended)
    if ended.status.phase != "Succeeded":
        raise CommandExit(ExitCode.JOB_FAILED)


def _nodes(client: ClusterClient) -> list[dict[str, Any]]:
    with suppress(MusterError):  # the user may not read them
        return client.nodes()
    return []


def _start_on_host(
    client: ClusterClient, program: RunProgram, options: RunOptions, given: dict[str, Any]
) -> TrainingJob | None:
    from muster.cli.manifests import parse_env_overrides
    from muster.cli.run_job import CodePlace, build_document
    from muster.local.code_copy import find_code
    from muster.local.environment import STAGED_ANNOTATION, submitter_environment
    from muster.local.home import open_home
    from muster.local.submissions import RunSubmission, discard, stage

    names, values = parse_env_overrides(given["env"], on_host=True)
    folder = Path.cwd()
    if given["dry_run"] and program.stdin is None:
        document = build_document(program, options, CodePlace(program.words, values), _nodes(client))
        job = _parsed(document, program, None, names, given)
        client.submit_all([job], dry_run=True)
        _print_yaml(document, given)
        return None
    code = find_code(folder) if given["copy"] and not given["dry_run"] else None
    place = _place_in_copy(program, code, values)
    document = build_document(program, options, place, _nodes(client))
    job = _parsed(document, program, code, names, given)
    if given["dry_run"]:
        client.submit_all([job], dry_run=True)
        _print_yaml(document, given)
        return None
    client.submit_all([job], dry_run=True)  # refused before anything is copied
    environment = [*submitter_environment(job), *values]
    submission = RunSubmission(_command(given), folder, code, tuple(environment), program.stdin)
    home = open_home()
    staged = stage(home, submission)
    try:
        (accepted,) = client.submit_all([_annotated(job, {STAGED_ANNOTATION: staged})])
    except MusterError:
        discard(home, staged)
        raise
    if not given["as_json"] and (omitted := client.newly_omitted([accepted])):
        print_note(f"note: {omitted.message('--env ')}")
    return accepted


def _place_in_copy(program: RunProgram, code: Code | None, values: dict[str, str]) -> Any:
    """The words of the program with its file in the run folder, and the variables with which imports find the copy."""
    from muster.cli.run_job import CodePlace, environment_path
    from muster.local.command_lines import RUN_DIR_REFERENCE
    from muster.local.submissions import CODE, FOLDER, STDIN

    words, folder = list(program.words), Path.cwd()
    if program.stdin is not None and program.script is not None:
        words[program.script] = f"{RUN_DIR_REFERENCE}{FOLDER}/{STDIN}"
        return CodePlace(tuple(words), values)
    if code is None:
        return CodePlace(tuple(words), values)
    copy, env = f"{RUN_DIR_REFERENCE}{FOLDER}/{CODE}", dict(values)
    if program.script is not None:
        inside = code.relative(folder / words[program.script])
        if inside in code.files:
            words[program.script] = f"{copy}/{inside}"
    path = environment_path(folder, code.root, copy)
    if words[0] == "-m":
        here = code.relative(folder)
        path = os.pathsep.join(filter(None, [str(PurePath(copy, here or ".")), path]))
        env.setdefault("PYTHONSAFEPATH", "1")  # else the folder itself comes before the copy
    if path:
        env.setdefault("PYTHONPATH", path)
    return CodePlace(tuple(words), env)


def _start_in_cluster(
    client: ClusterClient, program: RunProgram, options: RunOptions, given: dict[str, Any]
) -> TrainingJob | None:
    from muster.api.job_documents import add_shared_memory, restrict_pod
    from muster.cli.manifests import parse_env_overrides
    from muster.cli.run_job import CodePlace, build_document
    from muster.cluster_client.workspace import WORKSPACE_DIR, pack_files, unpack_in_pod
    from muster.local.code_copy import IGNORE_FILES, find_code
    from muster.local.submissions import ARCHIVED_RECORD, ARCHIVED_STDIN, RunSubmission

    if not options.image:
        usage_error(
            f"--image: must be given in a cluster, or {IMAGE_ENV} be set: an image with Muster and torch", "--image"
        )
    _, values = parse_env_overrides(given["env"], on_host=False)
    code = find_code(Path.cwd()) if given["copy"] else None
    words = list(program.words)
    if program.stdin is not None and program.script is not None:
        words[program.script] = f"{WORKSPACE_DIR}/{ARCHIVED_STDIN}"
    document = build_document(program, options, CodePlace(tuple(words), values), _nodes(client))
    pod, name = document["spec"]["roles"][0]["template"]["spec"], document["metadata"]["name"]
    archive: bytes | None = None
    if code is not None or program.stdin is not None:
        root, files = (code.root, code.files) if code is not None else (Path.cwd(), ())
        submission = RunSubmission(_command(given), Path.cwd(), code, tuple(values), program.stdin, options.image)
        more = {ARCHIVED_RECORD: json.dumps(submission.record()).encode()}
        if program.stdin is not None:
            more[ARCHIVED_STDIN] = program.stdin.encode()
        archive = pack_files(root, (root / file for file in files), IGNORE_FILES[0], more)
        unpack_in_pod(pod, name, "." if code is None else code.relative(Path.cwd()) or ".")
    add_shared_memory(pod)
    restrict_pod(pod)
    job = _parsed(document, program, code, [], given)
    if given["dry_run"]:
        client.submit_all([job], dry_run=True)
        _print_yaml(document, given)
        return None
    if archive is None:
        return client.submit_all([job])[0]
    return client.submit_with_archive(job, archive)  # type: ignore[attr-defined,no-any-return]  # of a cluster


def _command(given: dict[str, Any]) -> tuple[str, ...]:
    words = tuple(given["command"])
    return words[1:] if words[:1] == ("--",) else words


def _parsed(
    document: dict[str, Any], program: RunProgram, code: Code | None, names: list[str], given: dict[str, Any]
) -> TrainingJob:
    """The job of a document, with annotations that say what was submitted. Raises `InvalidSpec`."""
    from muster.api.spec import TrainingJob
    from muster.api.yaml_input import parse_objects
    from muster.local.environment import (
        CODE_ANNOTATION,
        COMMAND_ANNOTATION,
        allow_oversubscription,
        pass_variables,
    )

    annotations = {COMMAND_ANNOTATION: shlex.join(_command(given))[:2000]}
    if code is not None:
        annotations[CODE_ANNOTATION] = code.label
    document["metadata"]["annotations"] = annotations
    job = parse_objects(json.dumps(document), _SOURCE.partition(":")[0])[0].item
    assert isinstance(job, TrainingJob)
    return pass_variables(allow_oversubscription(job) if given["oversubscribe"] else job, names)


def _annotated(job: TrainingJob, more: dict[str, str]) -> TrainingJob:
    metadata = job.metadata.model_copy(update={"annotations": {**job.metadata.annotations, **more}})
    return job.model_copy(update={"metadata": metadata})


def _print_yaml(document: dict[str, Any], given: dict[str, Any]) -> None:
    import yaml

    if given["as_json"]:
        print_json([document])
    else:
        print(yaml.safe_dump(document, sort_keys=False, width=120), end="")
