"""`Client`: this host or a cluster, from a program or a notebook."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from muster.errors import InvalidSpec
from muster.sdk.job import Job


class RunKeywords(TypedDict, total=False):
    """Options of `Client.run`, as those of `muster run`: `processes` is -n, `time` a duration such as 2h or seconds."""

    name: str
    processes: int
    nodes: int
    gpus: int
    queue: str
    priority: int
    array: str
    time: str | float
    after: str | Sequence[str]
    singleton: str
    begin: str
    deadline: str
    cancel_if_unsatisfiable: bool
    env: Mapping[str, str]
    image: str
    max_restarts: int
    copy: bool
    oversubscribe: bool


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(RunKeywords.__annotations__),
    "nodes": 1, "after": (), "env": {}, "max_restarts": 0, "copy": True,
    "oversubscribe": False, "cancel_if_unsatisfiable": False, "dry_run": False, "as_json": True,
}  # fmt: skip


_LEAST = {"processes": 1, "nodes": 1, "gpus": 0, "max_restarts": 0}


def _parameter(option: str) -> str:
    return {"-n": "processes"}.get(option, option.removeprefix("--").replace("-", "_"))


class Client:
    """This host, whose daemon is started if it does not run, or a cluster.

    `context` and `kubeconfig` name a cluster, as the options of the commands do; without them `MUSTER_CONTEXT` and
    `MUSTER_CLUSTER` decide. `namespace` is that of jobs which are named without one. Methods raise the errors of
    `muster.errors`: `InvalidSpec` names the argument, `Refused` says why the cluster cannot accept it, `NotFound`.
    """

    def __init__(
        self,
        context: str | None = None,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
    ) -> None:
        from muster.cli.options import ClusterOptions, client_of, resolve_context

        path = None if kubeconfig is None else os.fspath(kubeconfig)
        self._context = resolve_context(ClusterOptions(None, context, path), os.environ)
        self._client = client_of(self._context)
        self._namespace: str = namespace or str(getattr(self._client, "namespace", "default"))

    def run(
        self,
        program: str | os.PathLike[str] | Callable[..., Any],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[RunKeywords],
    ) -> Job:
        """Submit a script with its arguments, or a function with its own, as a job: `muster run`.

        A function is sent as its source: it imports what it needs, and its arguments, with `kwargs`, are literals.
        """
        from muster.cli.run import IMAGE_ENV, errors_name_options, start_run
        from muster.cli.run_job import parse_program
        from muster.sdk.function_script import function_script

        if callable(program):
            script = function_script(program, args, kwargs or {})
            words: tuple[str, ...] = ("-",)
            parsed = replace(parse_program(words, script, Path.cwd()), label=program.__name__)
        elif kwargs:
            raise InvalidSpec("kwargs: must be those of a function; a script gets text: run('train.py', '--lr', 0.1)")
        else:
            words = (os.fspath(program), *map(str, args))
            parsed = parse_program(words, None, Path.cwd())
        if unknown := options.keys() - RunKeywords.__annotations__.keys():
            valid = ", ".join(sorted(RunKeywords.__annotations__))
            raise InvalidSpec(
                f"{', '.join(sorted(unknown))}: must be one of {valid}", field=min(unknown), reason="Usage"
            )
        for name, least in _LEAST.items():
            count = options.get(name)
            if count is not None and (not isinstance(count, int) or count < least):
                raise InvalidSpec(f"{name}: must be at least {least}; got {count!r}", field=name, reason="Usage")
        given = {**_DEFAULTS, "namespace": self._namespace, "image": os.environ.get(IMAGE_ENV), **options}
        after = given["after"]
        given |= {
            "after": (after,) if isinstance(after, str) else tuple(after),
            "env": [f"{name}={value}" for name, value in given["env"].items()],
            "time": None if given["time"] is None else str(given["time"]),
            "command": words,
        }
        with errors_name_options(_parameter):
            job = start_run(self._client, parsed, given, in_cluster=self._context is not None)
        assert job is not None, "only dry runs have none"
        return Job(self._client, job)

    def submit(self, file: str | os.PathLike[str]) -> list[Job]:
        """Submit the TrainingJobs of a YAML file, all or none: `muster submit`."""
        from muster.api.spec import TrainingJob
        from muster.api.yaml_input import load_objects

        found = load_objects(Path(file).read_bytes(), os.fspath(file))
        jobs = [item for item in found if isinstance(item, TrainingJob)]
        if len(jobs) < len(found) or not jobs:
            raise InvalidSpec(f"{os.fspath(file)}: kind: must be TrainingJob, of all objects", field="kind")
        return [Job(self._client, job) for job in self._client.submit_all(jobs)]

    def jobs(self, *, queue: str | None = None, phase: str | None = None) -> list[Job]:
        """TrainingJobs, oldest first: on this host all, in a cluster those of the namespace; of a queue and a phase."""
        namespace = None if self._context is None else self._namespace
        return [
            Job(self._client, job)
            for job in self._client.jobs(namespace)
            if queue in (None, job.spec.queue) and phase in (None, job.status.phase)
        ]

    def job(self, name: str, namespace: str | None = None) -> Job:
        """A job by name."""
        return Job(self._client, self._client.job(name, namespace or self._namespace))

    def queues(self) -> list[dict[str, Any]]:
        """The queues, as `muster queues --json` prints them."""
        return self._client.queues()

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes, as `muster nodes --json` prints them."""
        return self._client.nodes()
