"""Submits jobs and injects faults, by a seed. `run.py` has the order of a run."""
