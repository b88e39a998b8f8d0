"""Secrets of the collector: read from files, visible to no other process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.tracing.collector import load_store_credentials, read_token

_GET_DUMPABLE = 3


def secret(folder: Path) -> Path:
    """A Secret as a kubelet mounts it."""
    (folder / "..2026_11_22").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026_11_22")
    for name, value in (("MUSTER_TEST_KEY", "one"), ("MUSTER_TEST_SECRET", "two"), ("key.json", "{}")):
        (folder / "..2026_11_22" / name).write_text(value)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def test_each_key_of_a_mounted_secret_with_a_valid_name_becomes_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MUSTER_TEST_KEY", "MUSTER_TEST_SECRET"):
        monkeypatch.setenv(name, "before")
    assert load_store_credentials(secret(tmp_path / "store")) == ("MUSTER_TEST_KEY", "MUSTER_TEST_SECRET")
    assert (os.environ["MUSTER_TEST_KEY"], os.environ["MUSTER_TEST_SECRET"]) == ("one", "two")
    assert load_store_credentials(tmp_path / "none") == ()


def test_a_token_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert read_token(tmp_path / "token") == "abc"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has /proc and prctl")
def test_other_processes_cannot_inspect_the_process_and_secrets_are_not_in_proc(tmp_path: Path) -> None:
    program = (
        "import ctypes, sys, pathlib; from muster.tracing.collector import *;"
        "load_store_credentials(pathlib.Path(sys.argv[1]));"
        "print('MUSTER_TEST_KEY' in open('/proc/self/environ').read());"
        f"disable_process_inspection(); print(ctypes.CDLL(None).prctl({_GET_DUMPABLE}, 0, 0, 0, 0))"
    )
    command = [sys.executable, "-c", program, str(secret(tmp_path / "store"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["False", "0"]
