"""What holds for every test: its own home for Muster, and property tests that do not race a clock."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).resolve().parent.parent

# Machines that run tests are shared and slow at times; a deadline per example would fail there for no fault.
# Two runs of one commit test the same worlds: few with the unit tests, many with the slow ones; `make fuzz` looks for
# new ones.
settings.register_profile("muster", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=40)
settings.register_profile("deep", settings.get_profile("muster"), max_examples=200)
settings.register_profile(
    "fuzz",
    max_examples=200,
    deadline=None,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis"),
)
settings.load_profile(os.environ.get("MUSTER_HYPOTHESIS", "muster"))


@pytest.fixture(autouse=True, scope="session")
def home_of_the_tests() -> Iterator[Path]:
    """No test sees or touches the user's own daemon, jobs and database.

    The folder's path is short because the path of a Unix socket may not be longer than about a hundred bytes.
    """
    home = Path(tempfile.mkdtemp(prefix="muster-"))
    before = os.environ.get("MUSTER_HOME")
    os.environ["MUSTER_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["MUSTER_HOME"]
    else:
        os.environ["MUSTER_HOME"] = before
    shutil.rmtree(home, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever tests the trainer is to hold with every torch."""
    for item in items:
        if (ROOT / "tests" / "trainer") in item.path.parents:
            item.add_marker("matrix")
