"""The project's two images as archives for nodes, rebuilt when this checkout has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from filelock import FileLock
from tests.cluster.controlplane import binaries
from tools.images import ROOT, BuildOptions, Unavailable, build_images, git

TAG = "tests"
OPERATOR, TRAINER = f"localhost/muster-operator:{TAG}", f"localhost/muster-trainer:{TAG}"
_SOURCES = ("platform", "components", "operators", "constraints", "tools", "pyproject.toml", "README.md", "LICENSE")
_KEPT = 3


@cache  # later changes of the sources are for the next run
def ensure() -> list[Path]:
    """Archives of the operator and of the trainer without torch. Raises `binaries.Unavailable` where none can be built.

    Built archives are cached in the user's cache folder, keyed by their sources. MUSTER_IMAGES names a folder with both
    if they were built before: `make images VERSION=tests IMAGE_TORCH=none ARCHIVES=folder`.
    """
    given = os.environ.get("MUSTER_IMAGES")
    if given:
        return [Path(given, f"muster-{name}.tar") for name in ("operator", "trainer")]
    store = binaries.cache_folder().parents[1] / "images"
    folder = store / _fingerprint()
    archives = [folder / "muster-operator.tar", folder / "muster-trainer.tar"]
    store.mkdir(parents=True, exist_ok=True)
    with FileLock(store / "lock"):
        if not all(archive.exists() for archive in archives):
            draft = store / ".draft"
            shutil.rmtree(draft, ignore_errors=True)
            try:
                build_images(["operator", "trainer"], BuildOptions(TAG, epoch_s=epoch_s()), draft)
            except Unavailable as error:
                raise binaries.Unavailable(f"The images of pods cannot be built: {error}") from None
            except subprocess.CalledProcessError as error:
                command = " ".join(map(str, error.cmd[:2]))
                raise binaries.Unavailable(f"The images of pods cannot be built: {command} failed") from error
            draft.replace(folder)
        folder.touch()
        older = sorted((one for one in store.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
        for one in older[:-_KEPT]:
            shutil.rmtree(one, ignore_errors=True)
    return archives


def epoch_s() -> int:
    """Time stamp of all files and layers: constant, so that equal sources make equal images."""
    return 1_767_225_600  # 2026-01-01


def _fingerprint() -> str:
    """Digest of all files that the images are built from."""
    digest = hashlib.sha256(str(epoch_s()).encode())
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "--", *_SOURCES).splitlines():
        path = ROOT / name
        if path.is_file():
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
