"""A cluster with real nodes on one machine: the control plane of tests/cluster, and a kubelet and containerd per node.

Each node has its own namespaces (PID, mount, network, UTS), so that killing its first process kills everything on it,
like a power failure, and leaves nothing behind. See README.md in this folder. Does not import pytest.
"""
