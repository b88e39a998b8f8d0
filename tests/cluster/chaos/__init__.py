"""Whether the operator keeps its promises whatever happens: an observer that judges, and a driver that breaks things.

The observer (`observer.py`, `judge/`) is a process of its own. It shares no code with Muster: it reads etcd's own log
of changes, in which everything that happens stands in one order, and works everything out anew from
what it read there. The driver (`__main__.py`, `driver/`) submits jobs, kills, cuts, edits and deletes, by a seed.
"""
