"""Modules of users: their errors, and the fields that their forward takes."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from muster_components.trainer.errors import InputError, UserCodeError

if TYPE_CHECKING:
    from muster_components.trainer.models.factory import FactoryModel

pytestmark = pytest.mark.slow  # imports torch

FACTORIES = """
import functools
import ssl
import torch
from torch import nn

class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, picture, label=None):
        return {"loss": self.layer(picture).mean()}

def wrong_argument():
    return nn.Linear("two", 2)

def missing_file():
    open("/nonexistent")

def certificate():
    raise ssl.SSLCertVerificationError("of the network, and a ValueError")

def download():
    try:
        raise OSError("connection reset")
    except OSError as error:
        raise ValueError("the weights cannot be loaded") from error

def allocation():
    try:
        raise RuntimeError("the worker failed") from MemoryError()
    except RuntimeError as error:
        raise ValueError("the table cannot be built") from error

def own_cause():
    error = ValueError("of this call")
    raise error from error

def rename(module, args, fields):
    return args, {"picture": fields["pixels"]}

class Hooked(Tower):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(rename, with_kwargs=True)

class Called(Tower):
    def __call__(self, pixels):
        return super().__call__(pixels)

def with_width(function):
    @functools.wraps(function)
    def called(**arguments):
        return function(width=3, **arguments)
    return called

@with_width
def supplied(width, height=1):
    return Tower()

class Factory:
    def __call__(self, height=1):
        return Tower()

class Signed(Factory):
    __signature__ = "none"

factory, signed, tower, partial = Factory(), Signed(), Tower(), functools.partial(supplied, height=1)

def takes_pixels(forward):
    @functools.wraps(forward)
    def called(self, pixels):
        return forward(self, pixels)
    return called

class Renamed(Tower):
    forward = takes_pixels(Tower.forward)

def needs_values():
    rates = torch.linspace(0, 0.1, 4, device="cpu")
    assert f"{rates[-1]:.2f}" == "0.10"
    return Tower()

class Unsized:
    def __len__(self):
        return "two"
    def __getitem__(self, index):
        return {"picture": [1.0, 2.0]}

class Short:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return {"picture": [[1.0, 2.0]][index]}

class CallableData:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return {"picture": [float(index), 2.0]}
    def __call__(self, split):
        return self

callable_data = CallableData()

def no_dataset():
    return {}["missing"]
"""
LAZY = """
def __getattr__(name):
    raise ImportError(f"{name} needs a package")
"""


def factory_model(reference: str, **args: str) -> FactoryModel:
    from muster_components.trainer.models.factory import FactoryModel

    return FactoryModel(reference, args)


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_factories.py").write_text(FACTORIES)
    (tmp_path / "own_error.py").write_text("import math\nmath.squareroot(2)\n")
    (tmp_path / "own_import.py").write_text("import a_package_that_is_missing\n")
    (tmp_path / "own_lazy.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_factories", "own_error", "own_import", "own_lazy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("own_factories:wrong_argument", "--model own_factories:wrong_argument raised TypeError: "),
        ("own_factories:own_cause", "--model own_factories:own_cause raised ValueError: of this call"),
        ("own_error:build", "--model own_error:build raised AttributeError: module 'math' has no attribute"),
        ("own_import:build", "--model own_import:build raised ModuleNotFoundError: No module named 'a_package_that"),
        ("own_lazy:build", "--model own_lazy:build raised ImportError: build needs a package"),
        ("builtins:dict", "--model builtins:dict must return a torch.nn.Module; got dict"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_error_of_the_users_code_that_a_retry_repeats_is_invalid_input(reference: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        factory_model(reference).build()


@pytest.mark.parametrize(
    ("factory", "error"),
    [
        ("missing_file", FileNotFoundError),
        ("certificate", ssl.SSLCertVerificationError),
        ("download", ValueError),
        ("allocation", ValueError),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_error_of_the_users_code_that_may_not_occur_again_is_not_changed(
    factory: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        factory_model(f"own_factories:{factory}").build()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("Unsized", "--data own_factories:Unsized raised TypeError: 'str' object cannot be interpreted as an integer"),
        ("Short", "--data own_factories:Short: sample 1 raised IndexError: list index out of range"),
        ("no_dataset", "--data own_factories:no_dataset raised KeyError: 'missing'"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_error_of_the_users_data_set_that_a_retry_repeats_is_invalid_input(dataset: str, message: str) -> None:
    from muster_components.trainer.config import DataConfig
    from muster_components.trainer.data.samples import SampleSpec
    from muster_components.trainer.data.training_data import open_data

    spec = SampleSpec("fields", weight=1.0, allows_padding=False)
    with pytest.raises(UserCodeError, match=re.escape(message)):
        open_data(DataConfig(path=f"own_factories:{dataset}"), spec, Path()).samples.read(np.array([0, 1]))


@pytest.mark.usefixtures("factories")
def test_the_trainer_ends_with_exit_code_2_after_the_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "muster_components.trainer",
        "--model",
        "own_error:build",
        "--data",
        "own_factories:Short",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "own_error.py" in ended.stderr
    assert "trainer: --model own_error:build raised AttributeError: module 'math' has no attribute" in ended.stderr


@pytest.mark.usefixtures("factories")
def test_before_the_module_is_built_its_fields_are_checked_too() -> None:
    with pytest.raises(InputError, match="does not take the fields digits of the data"):
        factory_model("own_factories:Tower").collate({"digits": np.zeros((1, 2), np.float32)}, np.arange(1), 0)


@pytest.mark.parametrize("name", ["supplied", "factory", "signed", "partial"])
@pytest.mark.usefixtures("factories")
def test_a_factory_may_be_decorated_or_an_object_that_is_called(name: str) -> None:
    assert type(factory_model(f"own_factories:{name}", height="1").build()).__name__ == "Tower"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("supplied", "--model own_factories:supplied raised TypeError: supplied() got an unexpected keyword argument"),
        ("factory", "--model_args do not fit own_factories:factory: got an unexpected keyword argument 'depth'"),
        ("tower", "--model own_factories:tower must be a function or a class; got an object of class Tower"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_a_factory_that_cannot_be_called_so_is_invalid_input(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        factory_model(f"own_factories:{name}", depth="2").build()


@pytest.mark.usefixtures("factories")
def test_an_object_that_is_a_data_set_is_not_called() -> None:
    from muster_components.trainer.config import DataConfig
    from muster_components.trainer.data.samples import SampleSpec
    from muster_components.trainer.data.training_data import open_data

    spec = SampleSpec("fields", weight=1.0, allows_padding=False)
    samples = open_data(DataConfig(path="own_factories:callable_data"), spec, Path()).samples
    assert samples.read(np.array([3]))["picture"].tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize("name", ["Hooked", "Called", "Renamed"])
@pytest.mark.usefixtures("factories")
def test_a_module_that_changes_its_fields_itself_is_not_checked(name: str) -> None:
    model = factory_model(f"own_factories:{name}")
    pixels = np.zeros((1, 2), np.float32)
    assert model.collate({"pixels": pixels}, np.arange(1), 0) == {"pixels": pixels}


@pytest.mark.usefixtures("factories")
def test_fields_of_the_data_that_forward_does_not_take_are_named() -> None:
    model = factory_model("own_factories:Tower")
    model.build()
    picture, numbers = np.zeros((1, 2), np.float32), np.arange(1)
    assert model.collate({"picture": picture}, numbers, 0) == {"picture": picture}
    for fields, error in (
        ({"picture": picture, "digits": picture}, "the fields picture, digits of the data: got an unexpected keyword"),
        ({"label": picture}, "forward(picture, label=None) does not take the fields label of the data: missing"),
    ):
        with pytest.raises(InputError, match=re.escape(error)):
            model.collate(fields, numbers, 0)
