"""From a shell: which programs there are, and a cluster until Ctrl-C.

python -m tests.cluster.controlplane binaries [--current]
python -m tests.cluster.controlplane up --nodes 4 --gpus 8
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.cluster.controlplane.binaries import Unavailable, ensure
from tests.cluster.controlplane.catalogue import CURRENT, NEWEST, OLDEST, SERVERS, Release, written
from tests.cluster.controlplane.nodes import Shape
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Died


def binaries(*, current: bool) -> None:
    """Find or build every program, or only those of the current release, and print where each came from."""
    found = [*ensure().values()]
    if not current:
        found += [*ensure([OLDEST]).values(), *ensure(SERVERS, release=NEWEST).values()]
    for binary in found:
        print(f"{binary.name:<24} {written(binary.version):<9} {binary.source:<18} {binary.path}")


def up(nodes: int, shape: Shape, release: Release, gates: tuple[str, ...]) -> None:
    """Run a cluster until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with (
        tempfile.TemporaryDirectory(prefix="muster-cluster-") as folder,
        ControlPlane.start(Path(folder), release=release, gates=gates) as plane,
    ):
        plane.add_nodes(nodes, shape)
        print(f"{nodes} nodes with {shape.gpus} GPUs each; logs in {folder}; Ctrl-C ends it\n")
        print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
        ended.wait()


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.controlplane", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("binaries", help="find or build the programs, and print where they are")
    verb.add_argument("--current", action="store_true", help="only those of a control plane of the current release")
    verb = verbs.add_parser("up", help="run a cluster until Ctrl-C")
    verb.add_argument("--nodes", type=int, default=4)
    verb.add_argument("--gpus", type=int, default=8, help="per node")
    verb.add_argument("--per-rack", type=int, default=0, help="nodes in a rack; 0: all in one")
    verb.add_argument("--newest", action="store_true", help="run the newest Kubernetes release")
    verb.add_argument("--gate", action="append", default=[], help="a feature gate to turn on, e.g. GangScheduling")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "binaries":
            binaries(current=arguments.current)
        else:
            shape = Shape(gpus=arguments.gpus, per_rack=arguments.per_rack)
            up(arguments.nodes, shape, NEWEST if arguments.newest else CURRENT, tuple(arguments.gate))
    except (Unavailable, Died) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
