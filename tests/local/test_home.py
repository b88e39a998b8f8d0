"""Which folders are accepted as a home, the path of its socket, and its free disk space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.support import has

from muster.errors import DaemonUnavailable, InvalidSpec, Refused
from muster.local.home import home_path, log_fault, open_home, release_space


def test_a_new_home_is_private(tmp_path: Path) -> None:
    home = open_home(tmp_path / "a" / "home")
    assert home.path.stat().st_mode & 0o777 == 0o700
    assert home.socket() == home.path / "daemon.sock"


def test_a_home_that_other_users_can_enter_is_refused_with_the_command_to_fix_it(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    with pytest.raises(Refused, check=has("755", "chmod 700", reason="HomeUnusable")):
        open_home(tmp_path / "shared")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    os.chown(tmp_path / "other", 12345, 12345)
    with pytest.raises(Refused, check=has("12345", reason="HomeUnusable")):
        open_home(tmp_path / "other")


def test_a_file_is_refused_as_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, check=has("File exists", reason="HomeUnusable")):
        open_home(tmp_path / "file")


def test_a_home_with_a_long_path_has_its_socket_in_another_private_folder(tmp_path: Path) -> None:
    home = open_home(tmp_path / ("long-" * 30))
    socket = home.socket()
    assert len(str(socket)) < 108
    assert home.socket_pointer.read_text().strip() == str(socket)
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert open_home(home.path).socket() == socket
    socket.parent.rmdir()


def test_the_socket_of_a_home_whose_parent_was_replaced_by_a_file_is_unavailable(tmp_path: Path) -> None:
    home = open_home(tmp_path / "parent" / ("long-" * 30))
    socket_folder = home.socket().parent
    shutil.rmtree(tmp_path / "parent")
    (tmp_path / "parent").touch()
    with pytest.raises(DaemonUnavailable, check=has("daemon.sock.path", "removed", reason="NotRunning")):
        home.socket()
    socket_folder.rmdir()


def test_a_socket_folder_that_other_users_can_enter_is_refused(tmp_path: Path) -> None:
    home = open_home(tmp_path / ("long-" * 30))
    home.socket().parent.chmod(0o777)
    with pytest.raises(Refused, check=has("777", reason="HomeUnusable")):
        home.socket()
    Path(home.socket_pointer.read_text().strip()).parent.rmdir()


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket folder of a home whose path is too long; not created yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    folder = open_home(tmp_path / ("long-" * 30)).socket().parent
    folder.rmdir()
    (tmp_path / ("long-" * 30) / "daemon.sock.path").unlink()
    yield folder
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        folder.rmdir()


def test_an_existing_socket_folder_that_is_not_private_is_refused_before_it_is_used(
    tmp_path: Path, fallback: Path
) -> None:
    fallback.mkdir(mode=0o777)
    fallback.chmod(0o777)
    with pytest.raises(Refused) as refused:
        open_home(tmp_path / ("long-" * 30))
    assert (refused.value.reason, str(fallback) in str(refused.value)) == ("HomeUnusable", True)
    assert not (tmp_path / ("long-" * 30) / "daemon.sock.path").exists()


def test_a_symlink_as_socket_folder_is_refused(tmp_path: Path, fallback: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    fallback.symlink_to(tmp_path / "private")
    with pytest.raises(Refused) as refused:
        open_home(tmp_path / ("long-" * 30))
    assert (refused.value.reason, "symbolic link" in str(refused.value)) == ("HomeUnusable", True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_socket_folder_owned_by_another_user_is_refused(tmp_path: Path, fallback: Path) -> None:
    fallback.mkdir(mode=0o700)
    os.chown(fallback, 12345, 12345)
    with pytest.raises(Refused, check=has("12345", reason="HomeUnusable")):
        open_home(tmp_path / ("long-" * 30))


def test_a_dangling_symlink_as_socket_folder_is_refused(tmp_path: Path, fallback: Path) -> None:
    fallback.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused):
        open_home(tmp_path / ("long-" * 30))
    assert not (tmp_path / "nowhere").exists()


def test_the_home_is_that_of_the_environment_else_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", "/some/where")
    assert home_path() == Path("/some/where")
    monkeypatch.delenv("MUSTER_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert home_path() == Path("/home/me/.muster")


def test_a_relative_home_would_be_another_one_in_each_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", "here/muster")
    with pytest.raises(InvalidSpec, match="MUSTER_HOME must be an absolute path") as refused:
        home_path()
    assert refused.value.field == "MUSTER_HOME"
    monkeypatch.setenv("MUSTER_HOME", "~/here")
    assert home_path() == Path.home() / "here"


def test_a_folder_that_cannot_be_accessed_is_a_log_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.stat", fails)
    fault = log_fault(tmp_path / "run")
    assert fault is not None
    assert fault[0] == "LogsUnreachable"


def test_a_missing_or_unremovable_reserve_is_not_released(tmp_path: Path) -> None:
    assert not release_space(tmp_path / "reserve")
    (tmp_path / "reserve").mkdir()
    assert not release_space(tmp_path / "reserve")
    (tmp_path / "other").touch()
    assert release_space(tmp_path / "other")
