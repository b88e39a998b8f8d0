"""The place of an allocation: the line of the program, the node of autograd, or the optimizer."""

from __future__ import annotations

import pytest

from muster.tracing.memory.places import place_name
from muster.tracing.memory.snapshot import Frame

TORCH = "/opt/torch/.venv/lib/python3.12/site-packages/torch"
GENERATED = "/tmp/inductor/r3/cr3xeqkvdu3upll7qkxtpnqbxp7zxqx7paexnrdzfupl3d7bedyc.py"
MODEL = Frame("/home/user/model.py", 42, "forward")
MAIN = Frame("/home/user/train.py", 9, "main")
NATIVE = Frame("??", 0, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")
INTERPRETER = Frame("??", 0, "_PyEval_EvalFrameDefault")
ENGINE = Frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")
NODE = Frame("", 0, "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([NATIVE, MODEL, INTERPRETER, MAIN], "model.py:42 forward"),
        ([Frame(f"{TORCH}/nn/modules/linear.py", 125, "forward"), MODEL, MAIN], "model.py:42 forward"),
        ([Frame("/src/pytorch/torch/nn/functional.py", 3, "gelu"), MODEL], "model.py:42 forward"),
        (
            [Frame("/opt/torch/lib/python3.12/site-packages/transformers/modeling.py", 7, "forward")],
            "modeling.py:7 forward",
        ),
        ([Frame("/usr/lib/python3.12/contextlib.py", 80, "inner"), MAIN], "train.py:9 main"),
        ([Frame("<frozen runpy>", 88, "_run_code"), MAIN], "train.py:9 main"),
        ([Frame(GENERATED, 1020, "call"), MODEL, MAIN], "model.py:42 forward"),
        ([NATIVE, NODE, ENGINE], "backward (MmBackward0)"),
        ([NATIVE, Frame(GENERATED, 20, "call"), MODEL, ENGINE], "backward (model.py:42 forward)"),
        ([NATIVE, ENGINE], "backward"),
        ([Frame(f"{TORCH}/optim/adam.py", 178, "_init_group"), MAIN], "optimizer (adam.py:178 _init_group)"),
        ([NATIVE, INTERPRETER], "at::_ops::mm::call"),
        ([], ""),
    ],
)
def test_the_place_of_a_stack(frames: list[Frame], place: str) -> None:
    assert place_name(frames) == place
