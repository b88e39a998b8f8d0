"""A platform team's first day on a cluster with real nodes: the steps of `make demo-cluster`, which a test judges."""
