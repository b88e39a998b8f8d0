"""Traces of a running job on demand: all chosen ranks profile the same steps.

`protocol` has the files of the run folder through which a collector and the ranks communicate, `agreement` decides
which steps and follows the ranks until their traces are stored, `folder` reads and writes the files. The decision runs
in `muster trace` on one host, and in the operator on Kubernetes.
"""
