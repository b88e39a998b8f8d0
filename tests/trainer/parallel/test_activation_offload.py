"""Activations in host memory: the same gradients, and storages that are freed between forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from muster_components.trainer.parallel.activation_offload import WINDOW, ActivationOffload

pytestmark = pytest.mark.slow  # imports torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LAYERS = 3 * WINDOW
WIDTH = 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Model(nn.Module):
    """Layers with one large result each, a buffer that all use, and a tensor that is saved twice."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH * WIDTH).view(WIDTH, WIDTH))
        self.storages: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * self.scale) + x
            self.storages.append(StorageWeakRef(x.untyped_storage()))  # type: ignore[no-untyped-call]
            x = x * x.sigmoid()
        return x


def built(device: str) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model().to(device), torch.randn(WIDTH, WIDTH, device=device)


def gradients(model: Model, output: Tensor) -> Iterator[Tensor]:
    output.square().sum().backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_equal_to_the_last_bit_and_activations_are_freed(device: str, compiled: bool) -> None:
    torch._dynamo.reset()
    plain, x = built(device)
    expected = list(gradients(plain, plain(x)))
    model, x = built(device)
    if compiled:
        for layer in model.layers:
            layer.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    offload = ActivationOffload([model], torch.device(device), min_bytes=1)
    for _ in range(2):  # the second pass begins like the first
        model.zero_grad()
        model.storages.clear()
        with offload.context():
            output = model(x)
        kept = [number for number, storage in enumerate(model.storages) if not storage.expired()]  # type: ignore[no-untyped-call]
        # The latest stay, and those whose copies to the host have not ended: on a CPU they end at once.
        assert len(kept) <= (WINDOW if device == "cpu" else 2 * WINDOW)
        assert kept == list(range(LAYERS))[-len(kept) :]
        for ours, theirs in zip(gradients(model, output), expected, strict=True):
            assert torch.equal(ours, theirs)


class Seen(torch.autograd.Function):
    """Saves its inputs, and appends what it gets back to a list."""

    @staticmethod
    def forward(ctx: Any, back: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.back = back
        return tensors[0].sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.back.extend(ctx.saved_tensors)
        return (None, *(gradient.expand(tensor.shape) for tensor in ctx.saved_tensors))


def result(*shape: int) -> Tensor:
    """Of an operation, as activations are."""
    return torch.randn(*shape, requires_grad=True) * 2


def moved(model: nn.Module, *tensors: Tensor, min_bytes: int = 1) -> list[bool]:
    """Which of the tensors come back from another place."""
    back: list[Tensor] = []
    with ActivationOffload([model], torch.device("cpu"), min_bytes=min_bytes).context():
        loss = Seen.apply(back, *tensors)  # type: ignore[no-untyped-call]
        for _ in range(WINDOW):  # so that they are not among the latest
            loss = loss + result(WIDTH, WIDTH).exp().sum()
    loss.backward()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(back, tensors, strict=True))
    return [ours.data_ptr() != theirs.data_ptr() for ours, theirs in zip(back, tensors, strict=True)]


def test_weights_buffers_integers_and_small_tensors_are_not_moved() -> None:
    model = Model()
    weight = model.get_parameter("layers.0.weight")
    others = (weight, weight.t(), model.scale, torch.arange(100))
    assert moved(model, result(WIDTH, WIDTH), *others) == [True] + [False] * len(others)
    assert moved(model, result(WIDTH, WIDTH), result(7), min_bytes=1024) == [True, False]


def test_a_storage_that_is_saved_as_several_views_is_moved_once() -> None:
    back: list[Tensor] = []
    base = result(WIDTH, WIDTH)
    with ActivationOffload([], torch.device("cpu"), min_bytes=1).context():
        loss = Seen.apply(back, base, base.t(), base[3:5])  # type: ignore[no-untyped-call]
        for _ in range(WINDOW):
            loss = loss + result(WIDTH, WIDTH).exp().sum()
    loss.backward()
    assert len({tensor.untyped_storage().data_ptr() for tensor in back}) == 1
    assert [tensor.stride() for tensor in back] == [(WIDTH, 1), (1, WIDTH), (WIDTH, 1)]
    assert torch.equal(back[2], base[3:5])


@pytest.mark.parametrize("later", [0, 2 * WINDOW])
def test_a_tensor_that_is_changed_in_place_is_an_error_as_it_is_without_offload(later: int) -> None:
    """Before it is copied to the host, and when it is needed."""
    x = torch.randn(8, requires_grad=True)
    with ActivationOffload([], torch.device("cpu"), min_bytes=1).context():
        saved = x * 2
        loss = saved.exp().sum()
        exponent = saved.exp()
        loss = loss + exponent.sum()
        with pytest.raises(RuntimeError, match="changed in place"):  # noqa: PT012 - either part may raise
            exponent.mul_(2)
            for _ in range(later):
                loss = loss + result(WIDTH, WIDTH).exp().sum()
            loss.backward()  # type: ignore[no-untyped-call]
