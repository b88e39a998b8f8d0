"""The Python client: `from muster import Client`. What the commands of `muster` do, from a program or a notebook."""

from __future__ import annotations

from muster.sdk.client import Client
from muster.sdk.job import Job, JobReport, JobTrace

__all__ = ["Client", "Job", "JobReport", "JobTrace"]
