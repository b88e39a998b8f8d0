"""Runs the programs of a benchmark plan one after the other in a pod: `python -m muster_components.bench PLAN`."""
