"""Checks the operator's guarantees under failures of all components.

The observer (`observer.py`, `checker/`) is a process of its own. It shares no code with Muster: it reads etcd's log of
changes, which has all writes in one order, and derives everything from them. The driver (`__main__.py`, `driver/`)
submits jobs and injects faults, by a seed.
"""
