"""The step as a lightweight component in Python, for pipelines that run locally with kfp.

kfp runs the function's source in a process of its own, which needs kfp and Muster; so on a cluster, whose image has no
kfp, pipelines use the released component. No `from __future__ import annotations`: kfp reads the annotations.
"""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Metrics, Output

from muster.kfp.component import DEFAULT_IMAGE, DESCRIPTION, input_parameters


def train(  # noqa: D103  (documented below, from the table of parameters)
    metrics: Output[Metrics],
    report: Output[HTML],
    image: str = "",
    command: list = [],  # type: ignore[type-arg]  # noqa: B006  (kfp reads the types)
    replicas: int = 1,
    cpu: str = "",
    memory: str = "",
    gpus: int = 0,
    env: dict = {},  # type: ignore[type-arg]  # noqa: B006
    job: dict = {},  # type: ignore[type-arg]  # noqa: B006
    name: str = "",
    namespace: str = "",
    queue: str = "",
    priority: int = 0,
    max_runtime: str = "",
    trace_steps: str = "",
    run_volume: str = "",
    on_terminate: str = "cancel",
) -> NamedTuple("Outputs", [("job_name", str), ("run_folder", str)]):  # type: ignore[valid-type]
    values = {key: value for key, value in locals().items() if key not in ("metrics", "report")}
    from muster.kfp.step import run_step

    result = run_step(values, task=report.uri, report_path=report.path)
    for key, value in result.metrics.items():
        metrics.log_metric(key, value)
    return (result.job_name, result.run_folder)


train.__doc__ = "\n".join(
    [DESCRIPTION, "", "Args:", *(f"    {name}: {given['description']}" for name, given in input_parameters().items())]
)
train_component = dsl.component(base_image=DEFAULT_IMAGE, install_kfp_package=False)(train)
