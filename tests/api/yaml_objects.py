"""YAML of a job and a queue, and the error of reading it."""

from __future__ import annotations

import pytest

from muster.api.yaml_input import load_objects
from muster.errors import InvalidSpec

JOB = """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: llama, namespace: team-a}
spec:
  queue: research
  roles:
  - name: trainer
    replicas: 4
    template:
      spec:
        containers:
        - command: [python, train.py]
          resources: {limits: {nvidia.com/gpu: 8}}
"""
QUEUE = "apiVersion: muster.dev/v1alpha1\nkind: Queue\nmetadata: {name: research}\n"


def refusal(text: str | bytes) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        load_objects(text, "jobs.yaml")
    return caught.value


def changed(old: str, new: str, text: str = JOB) -> str:
    assert old in text
    return text.replace(old, new)
