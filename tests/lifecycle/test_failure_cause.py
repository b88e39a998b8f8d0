"""The cause of a failure in a few words, and what to try after one for lack of memory."""

from __future__ import annotations

import pytest
from tests.lifecycle.cases import NOW

from muster.api.spec import LastFailure
from muster.cluster import PodView
from muster.kinds.trainingjob.failure import failure_message
from muster.kinds.trainingjob.failure_cause import failure_cause, what_to_try

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
TRACEBACK = """Traceback (most recent call last):
  File "/repo/train.py", line 40, in <module>
    main()
  File "/repo/train.py", line 12, in main
    loss.backward()
  File "/usr/lib/python3.12/site-packages/torch/_tensor.py", line 648, in backward
    torch.autograd.backward(
"""


def of_launcher(error: str, rank: int) -> str:
    mark = f"[r{rank}] " if rank else ""
    lines = "".join(f"{mark}{line}\n" for line in [*TRACEBACK.splitlines(), error])
    other = 'File "/repo/other.py", line 7, in peer\n'
    return f"{lines}{other}muster: rank {rank} failed first, after 3.2 s: exit code 1; its last line: {error}\n"


def failure(log_tail: str, exit_code: int = 1, reason: str = "Error") -> LastFailure:
    return LastFailure(pod="p", exit_code=exit_code, reason=reason, log_tail=log_tail)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (of_launcher(OUT_OF_MEMORY, 1), "rank 1: CUDA out of memory in train.py:12"),
        (of_launcher("ValueError: no data", 3), "rank 3: ValueError: no data in train.py:12"),
        (
            of_launcher("[rank3]: ValueError: no data", 3),
            "rank 3: ValueError: no data in train.py:12",
        ),  # as torch marks it
        (f"{TRACEBACK}{OUT_OF_MEMORY}\n", "CUDA out of memory in train.py:12"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried\n", "HIP out of memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling\n", "GPU out of memory"),
        ("prog: error: argument --lr: invalid\n", "prog: error: argument --lr: invalid"),
        (
            f"{TRACEBACK}muster: rank 1 failed first, after 1.7 s: killed by SIGKILL (out of memory?)\n",
            "rank 1: killed by SIGKILL (out of memory?)",
        ),
        (
            "[r3] step 7\nmuster: rank 3 failed first, after 1.7 s: killed by SIGSEGV; its last line: step 7\n",
            "rank 3: killed by SIGSEGV",
        ),
        ("killed by SIGKILL\n", ""),
        ("step 7\n", ""),
        ("", ""),
    ],
)
def test_the_cause_names_rank_error_and_the_last_line_of_the_users_code(log: str, cause: str) -> None:
    assert failure_cause(failure(log)) == cause


def test_a_container_that_exceeded_its_memory_says_so() -> None:
    assert failure_cause(failure("", 137, "OOMKilled")).startswith("out of memory: the container")


def test_a_message_begins_with_the_cause_and_without_one_with_the_exit_code() -> None:
    pod = PodView("p-0", "u", "trainer", 0, 0, "n1", "Failed", exit_code=1, reason="Error", finished_at=NOW)
    known = failure_message(pod, failure(of_launcher("ValueError: no data", 3)))
    assert known == "rank 3: ValueError: no data in train.py:12 (pod p-0 on n1, exit code 1)"
    assert failure_message(pod, failure("step 7\n")) == "pod p-0 on n1 exited with code 1 (Error)"


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (failure(OUT_OF_MEMORY), "a smaller batch per GPU"),
        (failure("", 137, "OOMKilled"), "a higher memory request"),
        (failure("MemoryError\n"), "a higher memory request"),
        (failure("step 7\n", 137), "unless it was killed on purpose"),
    ],
)
def test_after_a_failure_for_lack_of_memory_something_to_try_is_named(failed: LastFailure, words: str) -> None:
    assert words in what_to_try(failed)


def test_after_other_failures_nothing_is_suggested() -> None:
    assert what_to_try(failure("ValueError: no data\n")) == what_to_try(None) == ""
