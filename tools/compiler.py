"""Names what torch.compile needs beyond Python packages and this machine lacks.

`python tools/compiler.py` prints it and exits with 1. Tests that compile are skipped with this sentence.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def missing() -> str:
    """A sentence that names what is missing and the packages of Debian that have it; "" if nothing is."""
    compilers = (os.environ.get("CXX"), "c++", "g++")
    lacks = {}
    if not any(name is not None and shutil.which(name) for name in compilers):
        lacks["g++"] = "a C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacks["python3-dev"] = "Python's C headers (Python.h)"
    if not lacks:
        return ""
    return f"torch.compile needs {' and '.join(lacks.values())}; on Debian: apt-get install {' '.join(lacks)}"


if __name__ == "__main__":
    sentence = missing()
    if sentence:
        print(sentence, file=sys.stderr)
    sys.exit(1 if sentence else 0)
