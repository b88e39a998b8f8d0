"""Which folders are accepted as a home, and where its socket is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.errors import Refused
from muster.local.home import home_path, open_home


def test_a_home_is_made_for_its_user_alone(tmp_path: Path) -> None:
    home = open_home(tmp_path / "a" / "home")
    assert home.path.stat().st_mode & 0o777 == 0o700
    assert home.socket() == home.path / "daemon.sock"


def test_a_home_that_others_can_enter_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(Refused, match=r"can be entered by other users \(mode 755\); run: chmod 700"):
        open_home(tmp_path / "open")


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder away needs root")
def test_a_home_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(Refused, match="belongs to user 12345"):
        open_home(tmp_path / "theirs")


def test_a_file_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="cannot be created: File exists"):
        open_home(tmp_path / "file")


def test_a_path_too_long_for_a_socket_gets_a_private_folder_elsewhere_and_a_pointer(tmp_path: Path) -> None:
    home = open_home(tmp_path / ("long-" * 30))
    socket = home.socket()
    assert len(str(socket)) < 108
    assert home.socket_pointer.read_text().strip() == str(socket)
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert open_home(home.path).socket() == socket
    socket.parent.rmdir()


def test_a_socket_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    home = open_home(tmp_path / ("long-" * 30))
    home.socket().parent.chmod(0o777)
    with pytest.raises(Refused, match="can be entered by other users"):
        home.socket()
    Path(home.socket_pointer.read_text().strip()).parent.rmdir()


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the socket goes of a home whose path is too long; not made yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    folder = open_home(tmp_path / ("long-" * 30)).socket().parent
    folder.rmdir()
    (tmp_path / ("long-" * 30) / "daemon.sock.path").unlink()
    yield folder
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        folder.rmdir()


def test_a_socket_folder_of_somebody_else_is_refused_before_anything_is_put_there(
    tmp_path: Path, fallback: Path
) -> None:
    fallback.mkdir(mode=0o777)
    fallback.chmod(0o777)
    with pytest.raises(Refused) as refused:
        open_home(tmp_path / ("long-" * 30))
    assert (refused.value.reason, str(fallback) in str(refused.value)) == ("HomeUnusable", True)
    assert not (tmp_path / ("long-" * 30) / "daemon.sock.path").exists()


def test_a_symlink_in_the_place_of_the_socket_folder_is_refused(tmp_path: Path, fallback: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    fallback.symlink_to(tmp_path / "private")
    with pytest.raises(Refused) as refused:
        open_home(tmp_path / ("long-" * 30))
    assert (refused.value.reason, "symbolic link" in str(refused.value)) == ("HomeUnusable", True)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder away needs root")
def test_a_socket_folder_owned_by_another_user_is_refused(tmp_path: Path, fallback: Path) -> None:
    fallback.mkdir(mode=0o700)
    os.chown(fallback, 12345, 12345)
    with pytest.raises(Refused, match="user 12345"):
        open_home(tmp_path / ("long-" * 30))


def test_a_dangling_symlink_in_the_place_of_the_socket_folder_is_refused(tmp_path: Path, fallback: Path) -> None:
    fallback.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused):
        open_home(tmp_path / ("long-" * 30))
    assert not (tmp_path / "nowhere").exists()


def test_the_environment_names_the_home_and_the_users_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", "/some/where")
    assert home_path() == Path("/some/where")
    monkeypatch.delenv("MUSTER_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert home_path() == Path("/home/me/.muster")
