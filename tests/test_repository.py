"""What holds for the repository as a whole: its packages, its pins, its entry points, its rules."""

import graphlib
import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LAYERS = sorted((ROOT / "constraints").glob("*.txt"))
COMPLETE = ("base", "kfp", "uv")  # layers that stand on no other
PACKAGES = ("muster", "muster_components", "muster_operator")
IMAGES = sorted((ROOT / "constraints" / "images").glob("*.txt"))


def pins(path: Path) -> dict[str, set[str]]:
    """The versions that a layer pins, by package."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def dependencies() -> list[Requirement]:
    """Every dependency of the project, extras included."""
    extras = PROJECT["optional-dependencies"]
    found = [
        Requirement(text) for text in [*PROJECT["dependencies"], *(text for extra in extras.values() for text in extra)]
    ]
    return [requirement for requirement in found if requirement.name != "muster"]


def test_the_standard_librarys_platform_module_is_not_shadowed() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert "muster" not in str(sys.modules.get("platform", importlib.import_module("platform")).__file__)


@pytest.mark.parametrize("requirement", dependencies(), ids=str)
def test_every_dependency_is_pinned_to_a_version_that_the_project_allows(requirement: Requirement) -> None:
    name = requirement.name.lower()
    # An environment with kfp has neither the extra kubernetes nor TorchX.
    layers = [layer for layer in (*LAYERS, *IMAGES) if layer.stem != "kfp" or name not in ("kubernetes", "urllib3")]
    versions = {version for layer in layers for version in pins(layer).get(name, ())}
    assert versions, f"{name} is in no constraints file: run `make lock`"
    assert [version for version in versions if version not in requirement.specifier] == []


def test_what_submits_a_job_needs_no_torch_no_kubernetes_client_and_nothing_of_the_operator() -> None:
    core = {Requirement(text).name for text in PROJECT["dependencies"]}
    extras = {"aiohttp", "filelock", "kubernetes", "prometheus-client", "psutil", "torch", "torchx", "typer", "uvloop"}
    assert core & extras == set()


@pytest.mark.parametrize("layer", LAYERS, ids=lambda path: path.stem)
def test_every_pin_has_a_hash_and_no_layer_repeats_the_one_below_it(layer: Path) -> None:
    blocks = re.split(r"\n(?=\S)", layer.read_text().strip())[1:]
    assert blocks
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    if layer.stem not in COMPLETE:
        assert pins(layer).keys() & pins(ROOT / "constraints" / "base.txt").keys() == set()


def test_torchx_keeps_the_schedulers_that_it_ships_and_its_default() -> None:
    schedulers = pytest.importorskip("torchx.schedulers")
    shipped = {name: f"{module}:create_scheduler" for name, module in schedulers.DEFAULT_SCHEDULER_MODULES.items()}
    registered = {e.name: e.value for e in importlib.metadata.entry_points(group="torchx.schedulers")}
    assert {name: value for name, value in registered.items() if value.startswith("torchx.")} == shipped
    assert {"muster", "muster_local"} <= schedulers.get_scheduler_factories().keys()
    assert schedulers.get_default_scheduler_name() == next(iter(shipped))


def test_torchx_keeps_the_components_that_it_ships_beside_ours() -> None:
    finder = pytest.importorskip("torchx.specs.finder")
    find = finder.ModuleComponentsFinder("torchx.components", "").find
    shipped = find(*[None] * len(inspect.signature(find).parameters))  # nightly asks for validators
    components = finder.get_components().keys()
    assert {component.name for component in shipped if not component.validation_errors} <= components
    ours = {f"muster.train.{name}" for name in ("trainer", "fsdp", "ddp", "pipeline", "script")}
    assert ours <= components


@pytest.mark.parametrize(
    ("python", "layer", "message"),
    [
        (sys.executable, "torch-1.0", "no constraints/torch-1.0.txt; there are: base frameworks go kfp torch-2.11"),
        ("/bin/false", "base", "PYTHON=/bin/false is not Python 3.11 or later"),
    ],
)
def test_set_up_names_what_it_cannot_do_and_touches_nothing(
    tmp_path: Path, python: str, layer: str, message: str
) -> None:
    command = [str(ROOT / "tools" / "environment.sh"), str(tmp_path / "env"), layer]
    environ = {**os.environ, "PYTHON": python}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "env").exists()


def test_the_check_of_what_is_committed_sees_registries_and_paths_of_one_machine() -> None:
    committed = importlib.import_module("tools.committed")
    text = "\n".join(
        ["fine", "see https://" + "pypi" + ".org/x", "pip install --index" + "-url x", "cat /wo" + "rk/x", "a/work/b"]
    )
    assert [number for number, _ in committed.findings(text)] == [2, 3, 4]


def test_the_allowlist_of_imports_names_the_line_that_breaks_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import math\n")
    (package / "sums.py").write_text("import math\nimport package\nimport time\n")
    rules = [
        *("[importlinter]", "root_package = package", "include_external_packages = true"),
        *("contract_types =", "    allowlist: tools.import_rules.AllowlistContract"),
        *("[importlinter:contract:pure]", "name = pure", "type = allowlist", "modules = package", "may_import ="),
    ]
    seen = {}
    for allowed in ("math", "math\n    time"):
        (tmp_path / "rules").write_text("\n".join([*rules, f"    {allowed}"]))
        command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
        seen[allowed] = subprocess.run(
            [*command, "--config", "rules", "--no-cache"],
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert seen["math"].returncode == 1
    assert "package.sums line 3 imports time" in seen["math"].stdout
    assert seen["math\n    time"].returncode == 0


def test_the_tests_of_one_checkout_do_not_run_with_the_code_of_another(tmp_path: Path) -> None:
    """As with the Python of another worktree, whose packages tests and the programs that they start would import."""
    (tmp_path / "muster").mkdir()
    (tmp_path / "muster" / "__init__.py").write_text("")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "tests/test_version.py"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"muster is imported from {tmp_path}" in ended.stderr


def test_no_test_file_imports_another() -> None:
    found = re.compile(r"^\s*(?:from\s+(?:[\w.]*\.)?test_\w+\s+import|import\s+tests\.[\w.]*test_)", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert [str(file.relative_to(ROOT)) for file in files if found.search(file.read_text())] == []


def test_make_and_ci_run_every_folder_of_tests_that_have_a_target_of_their_own() -> None:
    """`make unit` and `make slow` leave out the tests that a conftest.py marks with `cluster`."""
    folders = {path.parent for path in (ROOT / "tests").rglob("conftest.py") if 'marker("cluster")' in path.read_text()}
    names = {folder.relative_to(ROOT).as_posix() for folder in folders}
    assert names
    recipes = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    of_make = re.findall(r"^(?:test|rest): ([a-z -]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    of_ci = re.findall(r"run: .*\.ci/run (.*)", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    for targets in (" ".join(of_make).split(), " ".join(of_ci).split()):
        run = {word for target in targets for word in recipes.get(target, "").split()}
        assert names - run == set()


def test_of_make_test_all_each_test_runs_in_one_target() -> None:
    """`make test` runs what is neither slow nor on a cluster, and what is marked `smoke`; `make rest` the others."""
    environ = {name: value for name, value in os.environ.items() if name not in ("SMOKE", "MAKEFLAGS", "MAKELEVEL")}
    selections = {}
    for target in ("test", "rest", "slow"):
        made = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
        )
        selections[target] = re.findall(r"-m (\w+|\"[^\"]+\")\s", re.sub(r"-m (tools\.\w+|pytest) ", "", made.stdout))
    assert selections["test"] == ['"not slow and not cluster"', "smoke"]
    left = [selection for selection in selections["rest"] if "slow" in selection or selection == "kfp"]
    assert left == ["kfp", '"(slow or cluster) and not frameworks and not smoke"']
    assert selections["slow"] == ['"slow and not cluster and not frameworks"'], "all of them, if it is run alone"


def test_no_module_of_the_product_imports_itself_through_others() -> None:
    """Imports inside functions count too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # a CycleError names the modules


def test_no_file_of_the_product_has_more_than_400_lines() -> None:
    files = {Path(package.__file__ or "").parent for package in map(importlib.import_module, PACKAGES)}
    lines = {file: len(file.read_text().splitlines()) for folder in files for file in folder.rglob("*.py")}
    assert len(lines) > len(PACKAGES)
    assert {str(file): count for file, count in lines.items() if count > 400} == {}
