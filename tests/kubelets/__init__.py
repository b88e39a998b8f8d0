"""A cluster with real nodes on one machine: the control plane of tests/cluster, and a kubelet and a containerd a node.

Each node lives in namespaces of its own (processes, mounts, network, host name), so that ending its first process ends
everything on it, as a power cut would, and nothing of it is left on the machine. README.md beside this package tells
how to use it. Nothing in here imports pytest.
"""
