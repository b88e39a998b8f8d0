"""The operator on a control plane with pretended nodes: what it takes until pods are bound, seen from outside."""
