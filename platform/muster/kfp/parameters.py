"""The parameters of the step: one table for the component, its documentation and the job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from muster.api.spec.fields import MAX_REPLICAS, NamespaceName, StrictModel

_POD_FIELDS = ("image", "command", "replicas", "cpu", "memory", "gpus", "env")


def _to_text(values: Any) -> Any:
    """Numbers as text: Kubeflow Pipelines passes numbers in a list as they are, and integers perhaps as 20.0."""
    if isinstance(values, dict):
        return {name: _number_to_text(value) for name, value in values.items()}
    return [_number_to_text(value) for value in values] if isinstance(values, list) else values


def _number_to_text(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class TrainParameters(StrictModel):
    """What a step of a pipeline may set. An empty text, list or mapping and 0 leave the default."""

    model_config = ConfigDict(alias_generator=None)

    image: str = ""
    """Image of the pods. Not used on one host."""
    command: Annotated[list[str], BeforeValidator(_to_text)] = []
    """Program and arguments of each pod, as in a container's `command`."""
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of pods. All of them start together, or none does."""
    cpu: str = ""
    """CPU cores of each pod, such as 8 or 500m. Default: those set on the step."""
    memory: str = ""
    """Memory of each pod, such as 64Gi. Default: that set on the step."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs (nvidia.com/gpu) of each pod. Default: those set on the step."""
    env: Annotated[dict[str, str], BeforeValidator(_to_text)] = {}
    """Environment variables of the pods."""
    job: dict[str, Any] = {}
    """A TrainingJob as in YAML, instead of image, command, replicas, cpu, memory, gpus and env."""
    name: str = ""
    """Beginning of the job's name; the rest is the same for all retries of the step. Default: that of `job`, or
    train."""
    namespace: NamespaceName | Literal[""] = ""
    """Namespace of the job. Default: that of `job`, or that of the step."""
    queue: str = ""
    """Queue of the job. Default: that of `job`, or default."""
    priority: int = 0
    """Priority within the queue; higher goes first. Default: that of `job`, or 0."""
    max_runtime: str = ""
    """Maximum run time, such as 2h; enables backfill and estimated start times. Default: that of `job`, or none."""
    trace_steps: str = ""
    """Steps to profile: 20:25 is 20 to 24. Default: those of `job`, or none."""
    run_volume: str = ""
    """A PersistentVolumeClaim for the run folder: checkpoints outlive the pods. Default: none. Not used on one host."""
    on_terminate: Literal["cancel", "leave"] = "cancel"
    """What happens to the job when the step gets SIGTERM, also from a node that is drained: cancel, or leave it
    running, so that a retry of the step continues to follow it. The job is never deleted."""

    @model_validator(mode="after")
    def _job_or_pods(self) -> TrainParameters:
        given = [name for name in _POD_FIELDS if getattr(self, name) != type(self).model_fields[name].default]
        if self.job and given:
            raise ValueError(f"job: must not be set together with {', '.join(given)}; set them in the job's roles")
        if not self.job and not self.command:
            raise ValueError(
                "command: must be the program of the pods, such as [python, train.py], or set `job`; got []"
            )
        return self
