"""Modules of users: their errors, and the fields that their forward takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from muster_components.trainer.errors import InputError

if TYPE_CHECKING:
    from muster_components.trainer.models.factory import FactoryModel

pytestmark = pytest.mark.slow  # imports torch

FACTORIES = """
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
"""


def factory_model(reference: str) -> FactoryModel:
    from muster_components.trainer.models.factory import FactoryModel

    return FactoryModel(reference, {}, compile_blocks=False)


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_factories.py").write_text(FACTORIES)
    (tmp_path / "own_error.py").write_text("import math\nmath.squareroot(2)\n")
    (tmp_path / "own_import.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_factories", "own_error", "own_import"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("own_factories:wrong_argument", "--model own_factories:wrong_argument raised TypeError: "),
        ("own_error:build", "--model own_error:build raised AttributeError: module 'math' has no attribute"),
        ("own_import:build", "--model own_import:build raised ModuleNotFoundError: No module named 'a_package_that"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_error_of_the_users_code_that_a_retry_repeats_is_invalid_input(
    reference: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        factory_model(reference).build()
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("factories")
def test_an_error_of_the_users_code_that_may_not_occur_again_is_not_changed() -> None:
    with pytest.raises(FileNotFoundError):
        factory_model("own_factories:missing_file").build()


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
