"""A rank that is forked from a process which has imported torch already, for the ranks that tests start by the dozen.

`python -m MODULE` spends about five seconds of CPU time on imports, and 3.5 more on those of transformers. For the
rest a forked rank is the same: a process of its own, with its own arguments, environment, folder and output, which
receives signals, and ends with an exit code after its threads have ended. Only what these modules read from the
environment when they are imported is that of the first rank: OMP_NUM_THREADS, and HF_HUB_OFFLINE, which is 1.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

PRELOAD = [
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing.errors",
    "muster_components.trainer.session",
    "transformers.modeling_utils",
]


class Rank:
    """What tests need of subprocess.Popen, for `python -m MODULE ARGUMENT...` with its output in a file."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        log: Path,
        cwd: Path,
        environ: Mapping[str, str],
        limit_file_bytes: int | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        if environ.get("HF_HUB_OFFLINE", "1") != "1":
            raise ValueError("a test that sets HF_HUB_OFFLINE must start its ranks with preloaded=False")
        with only({**environ, "HF_HUB_OFFLINE": "1"}):
            forkserver.ensure_running()
        how = (module, arguments, str(log), str(cwd), dict(environ), limit_file_bytes)
        self._process = context.Process(target=_run, args=how)
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code. subprocess.TimeoutExpired where it takes longer."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process.exitcode is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


@contextmanager
def only(environ: Mapping[str, str]) -> Iterator[None]:
    """Nothing but these environment variables for a while."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(
    module: str, arguments: tuple[str, ...], log: str, cwd: str, environ: dict[str, str], limit_file_bytes: int | None
) -> None:
    """Be `python -m MODULE ARGUMENT...`, and end as Python does: threads, exit functions, exit code."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output, descriptor)
        setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))  # noqa: SIM115 - open to the end
    if limit_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [module, *arguments]
    sys.path.insert(0, cwd)
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)
