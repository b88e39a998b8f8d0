"""The released component: the step as a container of Muster's image, in the format that Kubeflow Pipelines compiles to.

It is written without kfp, from `TrainParameters`; a test compares it with what kfp itself compiles.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import yaml

from muster.kfp.parameters import TrainParameters

DEFAULT_IMAGE = "muster-trainer:0.1.0"
"""Muster's image of jobs; the release replaces it by the published one. It has no kfp and needs no torch."""
DESCRIPTION = (
    "Trains on a cluster with Muster: submits a TrainingJob, prints the log of its first pod, and ends with the job."
)
OUTPUT_PARAMETERS = {
    "job_name": "The job, as NAMESPACE/NAME.",
    "run_folder": "Its run folder: a path on one host, a URL in a store; empty if it was deleted with the pods.",
}
OUTPUT_ARTIFACTS = {
    "metrics": ("system.Metrics", "The last loss, step, tokens per second and MFU; restarts and run time."),
    "report": ("system.HTML", "The report of the run."),
}
_KFP_TYPES = {str: "STRING", int: "NUMBER_INTEGER", list: "LIST", dict: "STRUCT"}
_SDK_VERSION = "kfp-2.17.0"
_NAME, _COMPONENT, _EXECUTOR = "train", "comp-train", "exec-train"


def input_parameters() -> dict[str, dict[str, Any]]:
    """The definition of every input, by name."""
    return {
        name: {
            "defaultValue": float(field.default) if isinstance(field.default, int) else field.default,
            "description": inspect.cleandoc(field.description or "").replace("\n", " "),
            "isOptional": True,
            "parameterType": _KFP_TYPES[type(field.default)],
        }
        for name, field in TrainParameters.model_fields.items()
    }


def component(image: str = DEFAULT_IMAGE) -> dict[str, Any]:
    """The component as a pipeline of one step, which kfp loads as a component."""
    inputs = {"parameters": input_parameters()}
    outputs = {
        "artifacts": {
            name: {"artifactType": {"schemaTitle": kind, "schemaVersion": "0.0.1"}, "description": description}
            for name, (kind, description) in OUTPUT_ARTIFACTS.items()
        },
        "parameters": {
            name: {"description": description, "parameterType": "STRING"}
            for name, description in OUTPUT_PARAMETERS.items()
        },
    }
    paths = [part for name in OUTPUT_ARTIFACTS for part in (f"--{name}", f"{{{{$.outputs.artifacts['{name}'].path}}}}")]
    container = {"args": [*paths, "{{$}}"], "command": ["python", "-m", "muster.kfp"], "image": image}
    return {
        "components": {
            _COMPONENT: {"executorLabel": _EXECUTOR, "inputDefinitions": inputs, "outputDefinitions": outputs}
        },
        "deploymentSpec": {"executors": {_EXECUTOR: {"container": container}}},
        "pipelineInfo": {"description": DESCRIPTION, "name": _NAME},
        "root": {
            "dag": {"outputs": _passed_outputs(), "tasks": {_NAME: _task()}},
            "inputDefinitions": inputs,
            "outputDefinitions": outputs,
        },
        "schemaVersion": "2.1.0",
        "sdkVersion": _SDK_VERSION,
    }


def component_yaml(image: str = DEFAULT_IMAGE) -> str:
    """The component as text, for `kfp.components.load_component_from_text`; `image` is Muster's image of jobs in your
    registry."""
    return "# Written by `make manifests` from platform/muster/kfp/parameters.py.\n" + yaml.dump(
        component(image), Dumper=_WithoutAliases, sort_keys=False, width=120, allow_unicode=True
    )


def _task() -> dict[str, Any]:
    inputs = {name: {"componentInputParameter": name} for name in TrainParameters.model_fields}
    return {
        "cachingOptions": {},
        "componentRef": {"name": _COMPONENT},
        "inputs": {"parameters": inputs},
        "taskInfo": {"name": _NAME},
    }


def _passed_outputs() -> dict[str, Mapping[str, Any]]:
    return {
        "artifacts": {
            name: {"artifactSelectors": [{"outputArtifactKey": name, "producerSubtask": _NAME}]}
            for name in OUTPUT_ARTIFACTS
        },
        "parameters": {
            name: {"valueFromParameter": {"outputParameterKey": name, "producerSubtask": _NAME}}
            for name in OUTPUT_PARAMETERS
        },
    }


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True
