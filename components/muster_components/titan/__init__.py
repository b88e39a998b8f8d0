"""Runs an unmodified TorchTitan as a job: its own flags and TOML, Muster's progress, traces, stops and resume."""
