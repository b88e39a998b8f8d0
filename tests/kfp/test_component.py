"""The released component is what kfp itself compiles, and the component in Python has the same parameters.

No `from __future__ import annotations`: kfp reads the annotations.
"""

import inspect
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.kfp.__main__ import main
from muster.kfp.component import DEFAULT_IMAGE, DESCRIPTION, OUTPUT_PARAMETERS, component_yaml, input_parameters
from muster.kfp.parameters import TrainParameters

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "examples" / "11-kubeflow-pipeline" / "train.yaml"
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
needs_kfp = pytest.mark.kfp


def load(text: str) -> dict[str, Any]:
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def test_the_released_component_runs_muster_and_names_no_package_to_install() -> None:
    (executor,) = load(RELEASED.read_text())["deploymentSpec"]["executors"].values()
    container = executor["container"]
    assert container["command"] == ["python", "-m", "muster.kfp"]
    assert container["args"][-1] == "{{$}}"
    assert container["image"] == DEFAULT_IMAGE
    assert "pip" not in RELEASED.read_text().split()


def test_the_component_takes_another_image() -> None:
    (executor,) = load(component_yaml("registry.example.com/trainer:2"))["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == "registry.example.com/trainer:2"


def test_a_release_publishes_the_component_with_its_own_image() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (command,) = re.findall(
        r"^ *(sed .*) examples/11-kubeflow-pipeline/train.yaml > dist/muster-kfp-train.yaml$", workflow, re.M
    )
    environ = {"PATH": os.environ["PATH"], "TRAINER": "registry.example.com/muster-trainer", "VERSION": "1.2.3"}
    ran = subprocess.run(["sh", "-c", f"{command} {RELEASED}"], env=environ, capture_output=True, text=True, check=True)
    assert load(ran.stdout) == load(component_yaml("registry.example.com/muster-trainer:1.2.3"))


@needs_kfp
def test_the_released_component_is_what_kfp_compiles_from_the_same_parameters(tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    from kfp import compiler, dsl

    defaults = {name: field.default for name, field in TrainParameters.model_fields.items()}
    types = {
        "metrics": dsl.Output[dsl.Metrics],
        "report": dsl.Output[dsl.HTML],
        **dict.fromkeys(OUTPUT_PARAMETERS, dsl.OutputPath(str)),
        **{name: type(default) for name, default in defaults.items()},
    }

    def train(metrics: Any, report: Any, *others: Any) -> Any:
        args = ["--metrics", metrics.path, "--report", report.path, dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
        return dsl.ContainerSpec(image=DEFAULT_IMAGE, command=["python", "-m", "muster.kfp"], args=args)

    train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, POSITIONAL, annotation=kind, default=defaults.get(name, inspect.Parameter.empty))
            for name, kind in types.items()
        ]
    )
    train.__doc__ = "\n".join(
        [DESCRIPTION, "", "Args:", *(f"    {name}: {one['description']}" for name, one in input_parameters().items())]
    )
    compiler.Compiler().compile(dsl.container_component(train), str(tmp_path / "train.yaml"))
    compiled, released = load((tmp_path / "train.yaml").read_text()), load(RELEASED.read_text())
    for document in (compiled, released):
        document["sdkVersion"] = ""
        document["root"]["dag"]["tasks"]["train"]["cachingOptions"] = {}  # released: off
        for place in (document["root"], document["components"]["comp-train"]):
            place["outputDefinitions"] = without_descriptions(place["outputDefinitions"])
    assert released["pipelineInfo"].pop("description") == DESCRIPTION
    assert released == compiled


@needs_kfp
def test_the_component_in_python_has_the_same_inputs_and_outputs(tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    from kfp import compiler

    from muster.kfp import train

    compiler.Compiler().compile(train, str(tmp_path / "train.yaml"))
    lightweight, released = load((tmp_path / "train.yaml").read_text()), load(RELEASED.read_text())
    assert lightweight["root"]["inputDefinitions"] == released["root"]["inputDefinitions"]
    assert without_descriptions(lightweight["root"]["outputDefinitions"]) == without_descriptions(
        released["root"]["outputDefinitions"]
    )


def without_descriptions(definitions: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {name: {key: value for key, value in one.items() if key != "description"} for name, one in named.items()}
        for kind, named in definitions.items()
    }


@needs_kfp
def test_a_pipeline_for_a_cluster_uses_the_released_component_with_resources_and_retries(tmp_path: Path) -> None:
    pytest.importorskip("kfp")
    from kfp import compiler, components, dsl

    train = components.load_component_from_text(component_yaml("registry.example.com/trainer:2"))

    @dsl.pipeline  # type: ignore[untyped-decorator]
    def pipeline(steps: int = 10) -> None:
        task = train(image="own", command=["python", "train.py", "--steps", steps], queue="red")
        task.set_memory_limit("64Gi").set_retry(2).set_caching_options(False)

    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    compiled = load((tmp_path / "pipeline.yaml").read_text())
    (executor,) = compiled["deploymentSpec"]["executors"].values()
    assert executor["container"]["image"] == "registry.example.com/trainer:2"
    assert executor["container"]["resources"]["resourceMemoryLimit"] == "64Gi"
    assert compiled["root"]["dag"]["tasks"]["train"]["retryPolicy"]["maxRetryCount"] == 2


@pytest.mark.parametrize(
    "given",
    ["[]", "{}", "[" * 50_000, '{"inputs": null, "outputs": {}}', "{", '{"a": ' + "9" * 5000 + "}"],
    ids=["list", "empty", "deep", "without outputs", "no JSON", "long integer"],
)
def test_what_is_no_executor_input_is_refused_in_a_few_words(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--metrics", "m", "--report", "r", given])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "executor_input" in message
    assert len(message) < 300
