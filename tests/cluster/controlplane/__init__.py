"""A real Kubernetes control plane on this machine, for tests, benchmarks and developers.

etcd, API server, controller manager and scheduler are the real ones; KWOK plays the kubelets of nodes that exist only
as objects. README.md beside this package tells how to use it. Nothing in here imports pytest.
"""
