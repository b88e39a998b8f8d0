"""The recordings of workloads in data/."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent / "data"


FORMS = {
    "openb": (DATA / "openb_form_nodes.csv", DATA / "openb_form_pods.csv"),
    "plain": (DATA / "plain_nodes.csv", DATA / "plain_jobs.csv"),
}
