"""The environments that jobs were submitted with: each in a file of mode 600, since it may hold tokens.

They are no part of the objects, which are printed, and go with the record of their job.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from muster.errors import ClusterError
from muster.local.home import Home

_FILE = "environment.json"


@dataclass(frozen=True, slots=True)
class JobEnvironmentStore:
    """By uid of the job."""

    home: Home

    def save(self, uid: str, environment: Mapping[str, str]) -> None:
        """Write it to the disk (fsync). Raises `ClusterError` StoreUnwritable."""
        folder = self.home.job_pods_dir(uid)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder)  # of mode 600
            with os.fdopen(handle, "w") as file:
                json.dump(dict(environment), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folder / _FILE)
        except OSError as error:
            message = f"the environment of the job cannot be written to {folder}: {error.strerror}"
            raise ClusterError(message, reason="StoreUnwritable") from error

    def load(self, uid: str) -> dict[str, str] | None:
        """That of a job; None where none was sent with it. Raises OSError."""
        try:
            content = json.loads((self.home.job_pods_dir(uid) / _FILE).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise OSError(f"{self.home.job_pods_dir(uid) / _FILE} cannot be read") from error
        return {str(name): str(value) for name, value in content.items()}

    def delete(self, uid: str) -> None:
        """Remove it, of a job that was not accepted."""
        shutil.rmtree(self.home.job_pods_dir(uid), ignore_errors=True)

    def delete_all_except(self, uids: Collection[str]) -> None:
        """Remove what a daemon that was killed left behind of jobs that are not there."""
        with suppress(OSError):
            for folder in self.home.pods_dir.iterdir():
                if folder.name not in uids:
                    self.delete(folder.name)
