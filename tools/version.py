"""The version is defined in pyproject.toml; all other places are derived from it or checked here.

`python tools/version.py` prints it. `--check` prints each place that names another one and exits with 1 where there is
any; `make check` runs that. `--check v0.2.0` also asks that this tag is the version's, and that the changelog has a
part for it.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_VERSION = r"(\d+\.\d+\.\d+(?:[-.a-z0-9]+)?)"

# Every match of a pattern in these files is a version of Muster.
PLACES = {
    "helm/muster/Chart.yaml": rf"^(?:version|appVersion): {_VERSION}$",
    "operators/Containerfile": rf"^ARG VERSION={_VERSION}$",
    "components/Containerfile": rf"^ARG VERSION={_VERSION}$",
    "platform/muster/kfp/component.py": rf"muster-trainer:{_VERSION}",
    "docs/start/install.md": rf"(?:muster-(?:operator|trainer):|VERSION=|image\.tag=|\| `VERSION` \| `){_VERSION}",
}


def version(root: Path = ROOT) -> str:
    """The version of this checkout, e.g. "0.1.0"."""
    found: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return found


def mismatches(root: Path, tag: str = "") -> Iterator[str]:
    """What names another version, or none where there should be one: a line for each."""
    wanted = version(root)
    for name, pattern in PLACES.items():
        text = (root / name).read_text()
        found = list(re.finditer(pattern, text, re.MULTILINE))
        if not found:
            yield f"{name}: names no version; must name {wanted}"
        for match in found:
            if match[1] != wanted:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{name}:{line}: version must be {wanted}, that of pyproject.toml; got {match[1]}"
    if tag and tag != f"v{wanted}":
        yield f"tag must be v{wanted}, after the version of pyproject.toml; got {tag}"
    if tag and not re.search(rf"^## \[{re.escape(wanted)}\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md must have a part `## [{wanted}] - DATE`; it has none"


def main(*arguments: str) -> int:
    """Return the exit code."""
    if not arguments:
        print(version())
        return 0
    if arguments[0] != "--check" or len(arguments) > 2:
        print("usage: python tools/version.py [--check [TAG]]", file=sys.stderr)
        return 2
    found = list(mismatches(ROOT, *arguments[1:]))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
