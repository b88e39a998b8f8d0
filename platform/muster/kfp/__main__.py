"""The container of the released component: `python -m muster.kfp --metrics PATH --report PATH EXECUTOR_INPUT`.

Reads the step's parameters from the JSON that Kubeflow Pipelines passes, and writes its outputs as a component in
Python does: output parameters into their files, metadata of artifacts into the executor's output file. Needs no kfp.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from muster.errors import ClusterError, InvalidSpec, MusterError, Refused
from muster.kfp.parameters import TrainParameters
from muster.kfp.step import PipelineStepResult, ignore_signals, run_step

_EXIT_CODES = ((InvalidSpec, 2), (Refused, 3), (ClusterError, 4))
"""As for the command line; 1 if the job did not succeed."""
_PARAMETERS = ("job_name", "run_folder")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m muster.kfp", description="A step of Kubeflow Pipelines.")
    parser.add_argument("--metrics", type=Path, required=True, help="file of the artifact metrics")
    parser.add_argument("--report", type=Path, required=True, help="file of the artifact report")
    parser.add_argument("executor_input", type=_executor_input, help="the executor input of the step, as JSON")
    given = parser.parse_args(arguments)
    passed = given.executor_input.get("inputs", {}).get("parameterValues", {})  # with those that others refer to
    values = {name: value for name, value in passed.items() if name in TrainParameters.model_fields}
    outputs = given.executor_input["outputs"]
    task = str(outputs["artifacts"]["report"]["artifacts"][0]["uri"])
    try:
        result = run_step(values, task=task, report_path=str(given.report))
        ignore_signals()  # the job has succeeded: what remains takes a moment
    except MusterError as error:
        print(f"muster: {error}", file=sys.stderr, flush=True)
        return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    _write(given.metrics, json.dumps(dict(result.metrics), indent=1))
    _write_outputs(outputs, result)
    return 0


def _executor_input(text: str) -> dict[str, Any]:
    """The executor input, with all that is read from it. Raises ArgumentTypeError."""
    try:
        found = json.loads(text)
        outputs = found["outputs"]
        places = [outputs["outputFile"], *(outputs["parameters"][name]["outputFile"] for name in _PARAMETERS)]
        places += [outputs["artifacts"][name]["artifacts"][0]["uri"] for name in ("metrics", "report")]
        passed = found.get("inputs", {}).get("parameterValues", {})
        if not isinstance(passed, dict) or not all(isinstance(place, str) for place in places):
            raise TypeError
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be JSON; got {len(text)} characters: {error}") from error
    except (TypeError, AttributeError, LookupError) as error:
        message = "must have inputs.parameterValues, and outputs with outputFile, parameters and artifacts, as Kubeflow"
        raise argparse.ArgumentTypeError(f"{message} Pipelines writes them") from error
    return cast(dict[str, Any], found)


def _write_outputs(outputs: Mapping[str, Any], result: PipelineStepResult) -> None:
    parameters = dict(zip(_PARAMETERS, (result.job_name, result.run_folder), strict=True))
    for name, value in parameters.items():
        _write(Path(outputs["parameters"][name]["outputFile"]), value)
    metadata: dict[str, Mapping[str, float]] = {"metrics": result.metrics, "report": {}}
    artifacts = {
        name: {"artifacts": [{**outputs["artifacts"][name]["artifacts"][0], "metadata": dict(fields)}]}
        for name, fields in metadata.items()
    }
    _write(Path(outputs["outputFile"]), json.dumps({"parameterValues": parameters, "artifacts": artifacts}))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
