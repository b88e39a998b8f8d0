"""What holds for every test: its own home for Muster, and property tests that do not race a clock."""

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers
from tools import compiler
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("muster", "muster_components", "muster_operator")

# A shell without job control starts `command &` with SIGINT ignored, which programs inherit: those that tests end by
# Ctrl-C would then run on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else each rank that compiles starts more processes that import torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Machines that run tests are shared and slow at times; a deadline per example would fail there for no fault.
# Two runs of one commit test the same examples, few of them; `make fuzz` tests many (deep), and then new ones (fuzz).
# For that, hypothesis may not draw constants from the modules that happen to be imported: which they are depends on the
# tests that ran before in the same process.
settings.register_profile("muster", deadline=None, print_blob=True, derandomize=True, database=None, max_examples=25)
settings.register_profile("deep", settings.get_profile("muster"), max_examples=200)
settings.register_profile(
    "fuzz",
    max_examples=200,
    deadline=None,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis"),
)
settings.load_profile(os.environ.get("MUSTER_HYPOTHESIS", "muster"))
if settings.default is not None and settings.default.derandomize:
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure() -> None:
    """Refuse to test another checkout: with the Python of its environment, tests and the programs that they start
    import its packages."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        origin = "nowhere" if found is None else found.origin
        if origin is None or not Path(origin).resolve().is_relative_to(ROOT):
            raise pytest.UsageError(f"{name} is imported from {origin}, not from {ROOT}: run make setup there")


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


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadfile` with two exceptions: all tests of tests/kubelets run on one worker, since a machine has one
    cluster of theirs at a time; and each example, which takes as long as whole files, may have its own worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/examples/"):
            return nodeid
        return "tests/kubelets" if file.startswith("tests/kubelets/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """Called by pytest-xdist; None leaves it to the option --dist."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """The collector of garbage need not walk through all modules and tests again and again: a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever tests the trainer is to hold with every torch. `make test` would run a quick smoke test twice."""
    lacks_compiler = compiler.missing()
    for item in items:
        if (ROOT / "tests" / "trainer") in item.path.parents:
            item.add_marker("matrix")
        if lacks_compiler and item.get_closest_marker("compiles"):
            item.add_marker(pytest.mark.skip(reason=lacks_compiler))
        if item.get_closest_marker("smoke") and not any(map(item.get_closest_marker, ("slow", "cluster"))):
            raise pytest.UsageError(f"{item.nodeid} is marked smoke and neither slow nor on a cluster")
