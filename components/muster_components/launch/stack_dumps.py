"""Python stacks of ranks that hang, and their newest collectives.

A rank registers a handler of SIGQUIT that writes the stacks of its threads into a file (faulthandler), which also works
while it waits in a collective or holds the GIL. The launcher sends that signal on a request in the run folder
(`capture/stacks-request.json`), before it stops ranks, and before it kills those that did not stop. A rank without the
handler is not signalled, since SIGQUIT would end it; py-spy reads its stacks, where it can.

A rank with torch also reads a named pipe, into which the launcher writes where to dump torch's flight recorder
(`muster_components.trainer.flight_recorder`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankProcess
from muster_components.trainer.flight_recorder import REQUESTS_SUFFIX

STACK_SIGNAL = signal.SIGQUIT
MAX_FRAMES = 32
MAX_DUMP_BYTES = 4 << 20
NO_HANDLER = (
    "the program does not print stacks on request; start it by Muster's trainer, muster.train.script or "
    "`python -m muster_components.trainer.instrument SCRIPT`, or install py-spy beside it"
)
ENDED = "the rank has ended"
_POLL_S = 1.0
_MAX_REQUEST_BYTES = 4096
_FILE_POLL_S = 0.05
_QUIET_S = 0.3  # a dump has no end mark: it is complete when nothing more comes
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$')
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,79}")
_SPY_THREAD = re.compile(r"Thread .*?(?:: \"(?P<name>.*)\")?$")
_SPY_FRAME = re.compile(r"^    (?P<frame>\S.* \(.*\))$")
_MAX_SPY_ERROR = 200
_NOT_AN_ERROR = re.compile(r"Caused by:|Stack backtrace:|Error: ?")


@dataclass(frozen=True, slots=True)
class SpyDump:
    """The text of py-spy, or in `reason` why there is none."""

    text: str = ""
    reason: str = ""

    def main_frames(self, most: int) -> tuple[str, ...]:
        """The frames of the main thread, innermost first, as `name (file:line)`."""
        threads: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if thread := _SPY_THREAD.match(line):
                threads.append((thread["name"] or "", []))
            elif threads and (found := _SPY_FRAME.match(line)):
                threads[-1][1].append(found["frame"])
        # A process that has not imported threading has no names, and one thread of Python.
        main = [frames for name, frames in threads if name == "MainThread" or len(threads) == 1]
        return tuple(main[0][:most]) if main else ()


def spy_dump(pid: int, timeout_s: float) -> SpyDump:
    """The stacks of all threads of a process; py-spy stops it for some milliseconds."""
    program = shutil.which("py-spy")
    if program is None:
        return SpyDump(reason="py-spy is not installed")
    command = [program, "dump", "--full-filenames", "--pid", str(pid)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return SpyDump(reason=f"py-spy did not end within {timeout_s:.3g} s")
    except OSError as error:
        return SpyDump(reason=f"py-spy cannot be started: {error.strerror or error}")
    if ended.returncode:
        errors = (_NOT_AN_ERROR.sub("", line).strip() for line in ended.stderr.decode(errors="replace").splitlines())
        return SpyDump(reason=f"py-spy: {next(filter(None, errors), 'failed')[:_MAX_SPY_ERROR]}")
    return SpyDump(ended.stdout.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of one rank. `frames`: of its main thread, innermost first, as `name (file:line)`; `reason`: why there
    are none; `file`: all threads, below the run folder; `world_size`: the ranks of the job; `recorder`: the dump of
    torch's flight recorder, below the run folder, empty if there is none."""

    id: str
    attempt: int
    rank: int
    frames: tuple[str, ...] = ()
    reason: str = ""
    file: str = ""
    world_size: int = 0
    recorder: str = ""


class StackDumper:
    """Dumps the stacks of the ranks of this pod."""

    def __init__(self, ranks: Mapping[int, RankProcess], run_dir: Path | None, layout: RankLayout) -> None:
        self._ranks = ranks
        self._run_dir = run_dir
        self._attempt = layout.attempt
        self._world_size = layout.world_size
        self._timeout_s = layout.stacks_timeout_s
        self._lock = threading.Lock()
        self._answered = ""

    def start(self) -> None:
        """Answer requests in a thread of its own, if there is a run folder."""
        if self._run_dir is not None:
            threading.Thread(target=self._watch, name="stacks", daemon=True).start()

    def dump(self, request: str, ranks: Iterable[int], limit_s: float = math.inf) -> list[RankStacks]:
        """Write the stacks of these ranks into the run folder, with an answer for each; returns the answers. Waits
        for at most `limit_s`, and no longer than the layout's time-out."""
        timeout_s = min(self._timeout_s, limit_s)
        with self._lock:
            chosen = sorted(ranks)
            begun = {rank: self._signal(self._ranks[rank]) for rank in chosen}
            deadline = time.monotonic() + timeout_s
            spied = self._spy([rank for rank, begin in begun.items() if begin == NO_HANDLER], timeout_s)
            # Of each rank after its stacks: faulthandler reads those of threads that run meanwhile, and may crash the
            # rank if the one that answers wakes up.
            recorders: dict[int, str] = {}

            def on_stacks(rank: int) -> None:
                recorders[rank] = self._request_recorder(request, rank)

            signalled = {rank: begin for rank, begin in begun.items() if isinstance(begin, int)}
            self._await_quiet(signalled, deadline, on_stacks)
            for rank in chosen:
                if rank not in recorders:
                    on_stacks(rank)
            found = []
            for rank, begin in begun.items():
                stacks = self._stacks(request, rank, begin, spied)
                stacks = replace(stacks, recorder=self._await_recorder(recorders[rank], rank, deadline))
                self._write(f"capture/stacks-rank-{rank}.json", json.dumps(asdict(stacks)).encode())
                found.append(stacks)
            return found

    def _watch(self) -> None:
        while True:
            request = self._read_request()
            if request and request != self._answered:
                self._answered = request
                self.dump(request, self._ranks)
            time.sleep(_POLL_S)

    def _read_request(self) -> str:
        """The id of the newest request for this attempt; empty without one."""
        assert self._run_dir is not None
        try:
            fields = json.loads(_read_regular(self._run_dir / "capture" / "stacks-request.json"))
            is_ours = int(fields["attempt"]) == self._attempt and isinstance(fields["id"], str)
            return str(fields["id"]) if is_ours and _ID.fullmatch(fields["id"]) else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def _signal(self, process: RankProcess) -> int | str:
        """Send the signal; returns the size of the rank's file before, or why there are no stacks."""
        if not process.running:
            return ENDED
        if not process.stacks_file or not _catches(process.process.pid):
            return NO_HANDLER
        try:
            before = os.stat(process.stacks_file).st_size
            process.process.send_signal(STACK_SIGNAL)
        except OSError as error:
            return f"the rank cannot be signalled: {error.strerror or error}"
        return before

    def _request_recorder(self, request: str, rank: int) -> str:
        """Request a dump of the flight recorder; returns its name in the run folder, empty if the rank has none."""
        process = self._ranks[rank]
        if self._run_dir is None or not process.running or not process.stacks_file:
            return ""
        name = f"flight-recorder/rank-{rank}.attempt-{self._attempt}.{request}.pickle"
        try:
            pipe = os.open(process.stacks_file + REQUESTS_SUFFIX, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no process reads it: the program has not started the thread
            return ""
        try:
            (self._run_dir / name).unlink(missing_ok=True)  # of an earlier request with this id
            os.write(pipe, os.fsencode(self._run_dir / name) + b"\n")
        except OSError:
            return ""
        finally:
            os.close(pipe)
        return name

    def _await_recorder(self, name: str, rank: int, deadline: float) -> str:
        """The name once the dump is complete; empty if it is not by the deadline, for example without the GIL."""
        while name and self._run_dir is not None and not (self._run_dir / name).exists():
            if time.monotonic() >= deadline or not self._ranks[rank].running:
                return ""
            time.sleep(_FILE_POLL_S)
        return name

    def _await_quiet(self, begun: Mapping[int, int], deadline: float, on_quiet: Callable[[int], None]) -> None:
        """Wait until these ranks have written after the size in `begun`, and nothing more comes: a dump has no end
        mark. No longer than until `deadline` (monotonic), nor for ranks that have ended. `on_quiet`: of a rank."""
        sizes, quiet_since = dict(begun), dict.fromkeys(begun, time.monotonic())
        while sizes and time.monotonic() < deadline:
            time.sleep(_FILE_POLL_S)
            for rank, before in list(sizes.items()):
                size, now = _size(Path(self._ranks[rank].stacks_file)), time.monotonic()
                if size != before:
                    sizes[rank], quiet_since[rank] = size, now
                is_complete = size > begun[rank] and now - quiet_since[rank] >= _QUIET_S
                if is_complete or not self._ranks[rank].running:
                    del sizes[rank]
                    on_quiet(rank)

    def _stacks(self, request: str, rank: int, begin: int | str, spied: Mapping[int, Future[SpyDump]]) -> RankStacks:
        found = RankStacks(request, self._attempt, rank, world_size=self._world_size)
        if rank in spied:
            dump = spied[rank].result()
            if dump.reason:
                return replace(found, reason=f"{NO_HANDLER} ({dump.reason})")
            name = self._write_stacks(request, rank, dump.text[:MAX_DUMP_BYTES])
            return replace(found, frames=dump.main_frames(MAX_FRAMES), file=name)
        if isinstance(begin, str):
            return replace(found, reason=begin)
        text = _read_dump(Path(self._ranks[rank].stacks_file), begin)
        if not text and not self._ranks[rank].running:
            return replace(found, reason=ENDED)
        if not text:
            reason = f"no stacks within {self._timeout_s:g} s: the process is suspended or in the kernel"
            return replace(found, reason=reason)
        return replace(found, frames=main_frames(text), file=self._write_stacks(request, rank, text))

    def _spy(self, ranks: Sequence[int], timeout_s: float) -> dict[int, Future[SpyDump]]:
        """The stacks of ranks without a handler, all at once: one py-spy may take the whole time limit."""
        if not ranks:
            return {}
        with_limit = partial(spy_dump, timeout_s=timeout_s)
        executor = ThreadPoolExecutor(len(ranks), thread_name_prefix="py-spy")
        try:
            return {rank: executor.submit(with_limit, self._ranks[rank].process.pid) for rank in ranks}
        finally:
            executor.shutdown(wait=False)

    def _write_stacks(self, request: str, rank: int, text: str) -> str:
        """The name of the file in the run folder; empty if it cannot be written."""
        name = f"stacks/rank-{rank}.attempt-{self._attempt}.{request}.txt"
        return name if self._write(name, text.encode()) else ""

    def _write(self, name: str, content: bytes) -> bool:
        """Replace a file of the run folder; False if that fails, for example because the disk is full."""
        if self._run_dir is None:
            return False
        path = self._run_dir / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        return True


def main_frames(text: str) -> tuple[str, ...]:
    """The frames of the main thread, innermost first, without the import system's. It is the oldest thread, which
    faulthandler writes last."""
    frames: list[str] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            frames.clear()
        elif (match := _FRAME.match(line)) and not match["file"].startswith("<frozen ") and len(frames) < MAX_FRAMES:
            frames.append(f"{match['name']} ({match['file']}:{match['line']})")
    return tuple(frames)


def _catches(pid: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return bool(caught >> (STACK_SIGNAL - 1) & 1)


def _size(file: Path) -> int:
    """0 for a file that is gone."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _read_dump(file: Path, begin: int) -> str:
    """What was written after `begin`."""
    try:
        with file.open("rb") as opened:
            opened.seek(begin)
            return opened.read(MAX_DUMP_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read_regular(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return file.read(_MAX_REQUEST_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
