"""An image read from its archive: configuration, files, and a run of it with restricted privileges."""

from __future__ import annotations

import json
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Image:
    """An image in an archive of docker's format. Its files are unpacked below `folder` when first needed."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self._archive = archive
        self._folder = folder
        with tarfile.open(archive) as tar:
            self._manifest: Json = json.load(_member(tar, "manifest.json"))[0]
            self.config: Json = json.load(_member(tar, self._manifest["Config"]))

    @property
    def layers(self) -> list[str]:
        """Digests of the layers' contents, lowest first."""
        digests: list[str] = self.config["rootfs"]["diff_ids"]
        return digests

    def files(self, layer: int) -> dict[str, tarfile.TarInfo]:
        """The entries of one layer, by path."""
        with tarfile.open(self._archive) as tar, tarfile.open(fileobj=_member(tar, self._layer(layer))) as inner:
            return {entry.name: entry for entry in inner}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the image with its user and environment, only /tmp writable, and without capabilities."""
        root = self._folder / "root"
        if not root.exists():
            root.mkdir(parents=True)
            for layer in range(len(self.layers)):
                with tarfile.open(self._archive) as tar:
                    unpack = ["tar", "--extract", "--file=-", f"--directory={root}", "--preserve-permissions"]
                    subprocess.run(unpack, input=_member(tar, self._layer(layer)).read(), check=True)
        (self._folder / "config.json").write_text(json.dumps(self._bundle(root, command)))
        name = f"muster-{uuid.uuid4().hex[:8]}"
        runc = ["runc", "--root", str(self._folder / "state"), "run", "--bundle", str(self._folder), name]
        return subprocess.run(runc, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def _layer(self, number: int) -> str:
        name: str = self._manifest["Layers"][number]
        return name

    def _bundle(self, root: Path, command: tuple[str, ...]) -> Json:
        given = self.config["config"]
        user, group = (int(part) for part in given["User"].split(":"))
        kinds = ("pid", "network", "ipc", "uts", "mount")
        tmpfs = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": group},
                "args": [*(given.get("Entrypoint") or []), *command] if command[0].startswith("-") else list(command),
                "env": given["Env"],
                "cwd": given["WorkingDir"],
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "root": {"path": str(root), "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, tmpfs],
            "linux": {"namespaces": [{"type": kind} for kind in kinds]},
        }


def _member(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None, name
    return file
