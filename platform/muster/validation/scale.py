"""New numbers of replicas of a job's roles, validated before they are written."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from muster.errors import InvalidSpec, NotFound
from muster.spec import TrainingJob


def with_replicas(job: TrainingJob, replicas: Mapping[str, int]) -> TrainingJob:
    """The job with other numbers of replicas, by role; for the elastic role this replaces `elasticReplicas`. Raises
    `NotFound` RoleNotFound, or `InvalidSpec` with the valid range."""
    names = [role.name for role in job.spec.roles]
    for name in replicas:
        if name not in names:
            message = f"job {job.metadata.name!r} has no role {name!r}; it has {', '.join(names)}"
            raise NotFound(message, field="role", reason="RoleNotFound")
    written = job.model_dump(by_alias=True, exclude_unset=True)
    for place, role in enumerate(job.spec.roles):
        if role.name in replicas:
            _check_min_replicas(role.name, replicas[role.name], role.min_replicas)
            written["spec"]["roles"][place]["replicas"] = replicas[role.name]
            if role.is_elastic:
                written["spec"].pop("elasticReplicas", None)
    try:
        return TrainingJob.model_validate(written)
    except ValidationError as error:
        message = "; ".join(finding["msg"].removeprefix("Value error, ") for finding in error.errors())
        raise InvalidSpec(f"replicas: {message}", field="replicas") from error


def _check_min_replicas(role: str, replicas: int, min_replicas: int | None) -> None:
    if min_replicas is not None and replicas < min_replicas:
        message = f"role {role}: must be at least its minReplicas ({min_replicas}); got {replicas}"
        raise InvalidSpec(message, field="replicas")
