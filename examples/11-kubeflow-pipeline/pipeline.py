"""A pipeline of Kubeflow in three steps: prepare data, train, evaluate. Runs locally, with Muster on this host."""

import sys

from kfp import dsl, local
from kfp.dsl import Dataset, Output

from muster.kfp import train


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def prepare(text: Output[Dataset], lines: int = 2000) -> str:
    """Write a text to train on and return its path."""
    with open(text.path, "w") as file:
        for number in range(lines):
            file.write(f"{number} squared is {number * number}\n")
    return text.path


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate(run_folder: str, least_improvement: float = 0.1) -> float:
    """Return the last loss. Fails if it is not below the first one by this fraction."""
    import json

    with open(f"{run_folder}/metrics/rank-0.jsonl") as file:
        losses = [json.loads(line)["loss"] for line in file]
    print(f"{len(losses)} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    if losses[-1] > (1 - least_improvement) * losses[0]:
        raise ValueError(f"the loss must fall by {least_improvement:.0%}; got {losses[0]:.2f} -> {losses[-1]:.2f}")
    return losses[-1]


@dsl.pipeline
def prepare_train_evaluate(python: str = "python", steps: str = "20", queue: str = "default") -> float:
    """`python` is that of the training environment; on a cluster, that of the image."""
    data = prepare()
    trainer = ["-m", "muster_components.trainer", "--model", "gpt:1m", "--data", data.outputs["Output"]]
    sizes = ["--seq_len", "64", "--global_batch", "8", "--steps", steps, "--no_compile"]
    job = train(
        command=[python, "-m", "muster_components.launch", "--nproc", "2", "--", *trainer, *sizes],
        cpu="2",
        queue=queue,
        trace_steps="5:7",
    )
    return evaluate(run_folder=job.outputs["run_folder"]).output


if __name__ == "__main__":
    folder, python = sys.argv[1:]
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=folder)
    print("final loss", prepare_train_evaluate(python=python, queue="shared").output)
