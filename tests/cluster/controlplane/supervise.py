"""Run one program for as long as our standard input is open, and leave no process behind.

    python supervise.py PIDFILE LEFTOVER PROGRAM ARGUMENT...

The owner of a control plane may be killed with SIGKILL and cannot clean up; the kernel then closes its end of the pipe,
and this process kills the program and removes the folder LEFTOVER ("" for none). Should this process itself be killed,
the kernel kills the program (Linux). The program's process id is written to PIDFILE.

It is run as a file, without the site packages, so that it starts in milliseconds.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def main(pid_file: str, leftover: str, *command: str) -> int:
    """Return the program's exit code."""
    parent = os.getpid()

    def die_with_parent() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before we asked
                os._exit(1)

    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
    with open(f"{pid_file}.draft", "w") as file:
        file.write(str(program.pid))
    os.replace(f"{pid_file}.draft", pid_file)

    def when_owner_ends() -> None:
        while os.read(0, 4096):
            pass
        program.kill()

    # The program hangs on the thread that forked it, so it is the other one that waits for the owner.
    threading.Thread(target=when_owner_ends, daemon=True).start()
    code = program.wait()
    if leftover:
        shutil.rmtree(leftover, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
