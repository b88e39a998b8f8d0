"""Checks every committed text file for content that does not belong in a public repository.

That is: the address of a package registry (an install uses the one its user has configured), and a path of the
machine of a developer. Run by `make check`; prints each place and exits with 1 where there is any.
"""

import re
import subprocess
import sys
from pathlib import Path

# Written so that no pattern matches itself.
FORBIDDEN = {
    "a registry's host": re.compile(r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org"),
    "a choice of registry": re.compile(r"--(?:extra-|default-)?inde[x]-url\b|--find-link[s]\b"),
    "a path of one machine": re.compile(r"(?<![\w.$})-])/wor[k]/"),
}


def findings(text: str) -> list[tuple[int, str]]:
    """Return the line numbers, from 1, of what does not belong, and what it is."""
    return [
        (number, what)
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def tracked(root: Path) -> list[Path]:
    """Return the files that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := root / name).is_file()]


def main(root: Path) -> int:
    """Print the places; return the exit code."""
    found = 0
    for path in tracked(root):
        content = path.read_bytes()
        if b"\0" in content[:8000]:
            continue
        for number, what in findings(content.decode(errors="replace")):
            print(f"{path.relative_to(root)}:{number}: {what}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
