"""Muster's trace analysis beside HolisticTraceAnalysis (HTA) on the same traces, in one run.

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3'
    python benchmarks/beside_hta.py --hta-python hta/bin/python

    python benchmarks/beside_hta.py --hta-python hta/bin/python FOLDER...     # traces of your own

One trace of 873,000 events, then 8 ranks of 104 MB of JSON, or the folders that are given. Both programs run as
commands, in turn, with their start and imports. Muster does its whole analysis (`muster trace analyze --compat hta`:
also the causes of lost time); HTA loads the traces and computes the temporal breakdown and the overlap. Wall and CPU
time are medians; memory is the highest sum over the processes of a command (PSS, read five times per second), the
highest of all runs. Ends with 1 if the results differ.

HTA gets copies without the streams of host events: torch.compile's Inductor gives the events of its calls on the host
(`cpu_op`) the argument `stream`, and HTA takes what has a stream and a correlation for work of a device (HTA PR #268).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import tracing

Rows = list[dict[str, Any]]

# Run by HTA's Python. The names of the results are those of `muster trace analyze --json`.
_HTA = """
import json, logging, os, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis

files = dict(enumerate(sys.argv[1:]))
analysis = TraceAnalysis(trace_files=files, trace_dir=os.path.dirname(files[0]))
overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"].to_dict()
names = {"idle_us": "idle_time(us)", "compute_us": "compute_time(us)",
         "non_compute_us": "non_compute_time(us)", "kernel_us": "kernel_time(us)"}
rows = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
print(json.dumps([{"rank": int(row["rank"]), **{ours: int(row[theirs]) for ours, theirs in names.items()},
                   "overlap_pct": round(float(overlap[row["rank"]]), 2)} for row in rows]))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both programs on the same traces."""

    what: str
    hta: Cost
    muster: Cost
    equal: bool
    load: float

    def sentence(self) -> str:
        """For a terminal."""
        ours, theirs = self.muster, self.hta
        return (
            f"{self.what}: HTA {theirs.wall_s:.1f} s (CPU {theirs.cpu_s:.1f} s), {theirs.peak_mib:.0f} MiB; Muster "
            f"{ours.wall_s:.2f} s (CPU {ours.cpu_s:.2f} s), {ours.peak_mib:.0f} MiB. Muster takes 1/"
            f"{theirs.wall_s / ours.wall_s:.1f} of the wall time, 1/{theirs.cpu_s / ours.cpu_s:.1f} of the CPU time, "
            f"1/{theirs.peak_mib / ours.peak_mib:.1f} of the memory; results {'equal' if self.equal else 'DIFFER'}; "
            f"load average {self.load:.1f}"
        )


def run(command: Sequence[str]) -> tuple[Cost, str]:
    """Run a command; returns its cost and standard output. SystemExit if it fails."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        peak_kib, ended = 0, threading.Event()

        def watch() -> None:
            nonlocal peak_kib
            while not ended.wait(0.2):
                peak_kib = max(peak_kib, _pss_kib(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        ended.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{errors.read()[-2000:]}")
        return Cost(wall_s, used.ru_utime + used.ru_stime, peak_kib / 1024), output.read()


def _pss_kib(process: int) -> int:
    """Memory of a process and its descendants; pages that several of them share count once in the sum."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        children = [file.read_text().split() for file in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:  # it has ended
        return 0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return own + sum(_pss_kib(int(child)) for of_thread in children for child in of_thread)


def without_host_streams(text: bytes) -> bytes:
    """A trace without the argument `stream` of its host operators."""
    document = msgspec.json.decode(text)
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event.get("args", {}).pop("stream", None)
    return msgspec.json.encode(document)


def _copy_for_hta(source: Path, target: Path) -> None:
    text = source.read_bytes()
    text = gzip.decompress(text) if text.startswith(b"\x1f\x8b") else text
    target.write_bytes(gzip.compress(without_host_streams(text), 1))


def compare(what: str, hta_python: str, folder: Path, repeat: int) -> Comparison:
    """Both programs on the traces of a folder, `repeat` times in turn."""
    with tempfile.TemporaryDirectory() as copies:
        files = []
        for path in sorted(folder.glob("*.json*")):
            if path.name == "case.json":  # of the catalogue
                continue
            files.append(str(Path(copies, path.name.removesuffix(".gz") + ".gz")))
            tracing.in_process(_copy_for_hta, path, Path(files[-1]))
        return _compare(what, hta_python, (files, folder), repeat)


def _compare(what: str, hta_python: str, traces: tuple[list[str], Path], repeat: int) -> Comparison:
    files, folder = traces
    muster = str(Path(sys.executable).with_name("muster"))
    costs: dict[str, list[Cost]] = {"hta": [], "muster": []}
    equal = True
    for _ in range(repeat):
        cost, text = run([hta_python, "-W", "ignore", "-c", _HTA, *files])
        costs["hta"].append(cost)
        theirs: Rows = json.loads(text.splitlines()[-1])
        cost, text = run([muster, "trace", "analyze", str(folder), "--compat", "hta", "--json"])
        costs["muster"].append(cost)
        ours: Rows = json.loads(text)["temporal"]
        equal = equal and ours == theirs
        if ours != theirs:
            print(f"HTA: {theirs}\nMuster: {ours}", file=sys.stderr)
    return Comparison(what, _middle(costs["hta"]), _middle(costs["muster"]), equal, round(os.getloadavg()[0], 1))


def _middle(costs: Sequence[Cost]) -> Cost:
    wall_s, cpu_s = (statistics.median(getattr(cost, name) for cost in costs) for name in ("wall_s", "cpu_s"))
    return Cost(round(wall_s, 3), round(cpu_s, 3), round(max(cost.peak_mib for cost in costs), 1))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="folders of traces; default: the samples")
    parser.add_argument("--hta-python", default=sys.executable, help="a Python that has HTA; default: this one")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the second case; 0: only the first case")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args(argv)
    found = [compare(folder.name, args.hta_python, folder, args.repeat) for folder in args.folders]
    if not found:
        found = _samples(args.hta_python, args.ranks, args.repeat)
    if args.as_json:
        print(json.dumps({"cores": os.cpu_count(), "comparisons": [asdict(one) for one in found]}, indent=1))
    else:
        print("\n".join(one.sentence() for one in found))
    return 0 if all(one.equal for one in found) else 1


def _samples(hta_python: str, ranks: int, repeat: int) -> list[Comparison]:
    found = []
    with tempfile.TemporaryDirectory() as name:
        one, many = Path(name, "one"), Path(name, "many")
        one.mkdir()
        many.mkdir()
        tracing.in_process(tracing.lengthened, tracing.LARGEST, 8, one / "rank-0.json.gz")
        tracing.in_process(tracing.ranks_of, one / "rank-0.json.gz", 1, one)
        found.append(compare("1 rank, 872,984 events", hta_python, one, repeat))
        if ranks:
            long = Path(name, "long.json.gz")
            tracing.in_process(tracing.lengthened, tracing.LARGEST, 3, long)
            tracing.in_process(tracing.ranks_of, long, ranks, many)
            found.append(compare(f"{ranks} ranks of 104 MB", hta_python, many, repeat))
    return found


if __name__ == "__main__":
    sys.exit(main())
