"""Queues, flavors and jobs for the tests of validation."""

from __future__ import annotations

from typing import Any

import pytest

from muster import model
from muster.api.spec import Flavor, Queue, TrainingJob
from muster.errors import Refused


def queue(name: str, parent: str | None = None, **spec: Any) -> Queue:
    return Queue.model_validate({"metadata": {"name": name}, "spec": {"parent": parent, **spec}})


def gpus(flavor: str = "h200", **amounts: int) -> list[dict[str, Any]]:
    return [{"flavor": flavor, **{word: {"nvidia.com/gpu": amount} for word, amount in amounts.items()}}]


def flavor(name: str = "h200", *levels: str) -> Flavor:
    topology = [{"name": level, "nodeLabel": f"example.com/{level}"} for level in levels]
    return Flavor.model_validate({"metadata": {"name": name}, "spec": {"topology": topology}})


def job(**spec: Any) -> TrainingJob:
    role = {"name": "trainer", "replicas": 2, "template": {"spec": {"containers": [{"command": ["x"]}]}}}
    return TrainingJob.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [role], **spec}})


def refused(reason: str, act: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(Refused) as caught:
        act(*arguments, **named)
    assert caught.value.reason == reason
    return str(caught.value)


def gang(pods: int, gpus_each: int = 8, queue_name: str = "research", required: str | None = None) -> model.Gang:
    request = model.Resources.of({"nvidia.com/gpu": gpus_each, "pods": 1})
    role = model.Role("trainer", pods, pods, request)
    topology = model.Topology(required) if required else None
    return model.Gang("u", "default/j", queue_name, 0, 0.0, (role,), topology=topology)


COMPANY = [queue("company", namespaceSelector={}, resources=gpus(guaranteed=32)), queue("research", "company")]
