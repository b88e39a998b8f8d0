"""Selection of the program that builds images, and the message if there is none. The programs are shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import images
from tools.images import Builder, Unavailable


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_buildah_precedes_podman_and_podman_precedes_docker(programs: Path) -> None:
    for name in ("docker", "podman", "buildah"):
        script(programs, name, "exit 0")
        assert Builder.find() == Builder(name)


def test_without_a_builder_the_error_names_the_package(programs: Path) -> None:
    with pytest.raises(Unavailable, match=r"install buildah, podman or docker, e\.g\. apt-get install buildah"):
        Builder.find()


def test_a_docker_without_its_daemon_does_not_count(programs: Path) -> None:
    script(programs, "docker", "exit 1")
    with pytest.raises(Unavailable, match="its daemon does not answer"):
        Builder.find()


def test_the_given_base_is_used_and_fetched_if_missing(programs: Path, tmp_path: Path) -> None:
    script(programs, "buildah", f'[ "$1" = pull ] && echo "$3" >> {tmp_path}/pulled && exit 0; exit 1')
    assert Builder("buildah").select_base("registry.example.com/python:3.12") == "registry.example.com/python:3.12"
    assert (tmp_path / "pulled").read_text() == "registry.example.com/python:3.12\n"


def test_the_default_base_is_fetched_if_none_is_given(programs: Path) -> None:
    script(programs, "podman", '[ "$1" = pull ]')
    assert Builder("podman").select_base("") == images.DEFAULT_BASE


def test_without_registry_and_mmdebstrap_the_error_names_the_package(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(programs, "buildah", 'echo "no such host" >&2; exit 1')
    with pytest.raises(Unavailable, match="apt-get install mmdebstrap debian-archive-keyring; or name a base"):
        Builder("buildah").select_base("")
    assert "no registry: no such host" in capsys.readouterr().err
