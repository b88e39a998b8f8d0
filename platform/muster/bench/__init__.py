"""Benchmarks as queued jobs, and the decision whether a change made them slower (docs/tasks/regression.md)."""
