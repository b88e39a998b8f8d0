"""The operator on a control plane with virtual nodes: what it takes until pods are bound, seen from outside."""
