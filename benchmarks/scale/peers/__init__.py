"""Schedulers beside Muster, on the same kind of cluster and with the same work. None of them is part of the project."""
