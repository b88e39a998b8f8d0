"""The line of a log that explains a failure."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from muster.api.spec import LastFailure
from muster.kinds.trainingjob.failure_log import last_log_line


def failure(log_tail: str) -> LastFailure:
    """A failure with this end of the log."""
    return LastFailure(pod="llama-trainer-1", exit_code=3, log_tail=log_tail)


def test_below_the_rule_of_torchruns_summary_the_exception_is_the_last_line() -> None:
    tail = "RuntimeError: no space\nraise ChildFailedError(\nx.ChildFailedError: \n  exitcode: 1\n=====\n"
    assert last_log_line(failure(tail)) == "RuntimeError: no space"


_OF_TORCHRUN = """E1121 19:43:49.789000 15465 /x/torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
  File "/x/torch/distributed/run.py", line 1032, in <module>
    main()
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 4 (local_rank: 0)
  exitcode  : -15 (pid: 15500)
  traceback : Signal 15 (SIGTERM) received by PID 15500
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_19:43:49
  rank      : 5 (local_rank: 1)
  exitcode  : 3 (pid: 15501)
  error_file: <N/A>
  traceback : To enable traceback see: the docs of elastic, errors
============================================================
"""
_OF_A_RANK = 'Traceback (most recent call last):\n  File "train.py", line 2\nValueError: no data\n'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "python: can't open file '/nope.py': [Errno 2] No such file\n",
            "python: can't open file '/nope.py': [Errno 2] No such file",
        ),
        ("usage: train.py [-h]\ntrain.py: error: required: --n\n", "train.py: error: required: --n"),
        (_OF_A_RANK, "ValueError: no data"),
        ("[1]:step 7\n[1]:ValueError: no data\n[0]:RuntimeError: peer is gone\n", "ValueError: no data"),
        ("****\nSetting OMP_NUM_THREADS environment variable for each process\n****\n", "rank 5 exited with code 3"),
        ("", "rank 5 exited with code 3"),
    ],
)
def test_in_a_log_with_torchruns_summary_the_first_failed_rank_counts(log: str, expected: str) -> None:
    whole = log + _OF_TORCHRUN
    assert last_log_line(failure(whole)) == expected


@pytest.mark.parametrize("cut", ["  File ", "    raise ", "Failures:", "Root Cause"])
def test_a_tail_of_only_torchruns_output_yields_the_exit_code(cut: str) -> None:
    tail = _OF_TORCHRUN[_OF_TORCHRUN.index(cut) :]
    assert last_log_line(failure(tail)) == "rank 5 exited with code 3"


def test_a_line_of_digits_takes_linear_time() -> None:
    program = """
from muster.kinds.trainingjob.failure_log import _root_cause_line
lines = ["[" + "1" * 1_000_000, "Root Cause (first observed failure):", "rank      : 0 (local_rank: 0)"]
_root_cause_line(lines)
"""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # noqa: E731
    assert subprocess.run([sys.executable, "-c", program], preexec_fn=limit, check=False).returncode == 0
