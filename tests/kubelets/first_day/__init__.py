"""The first day of a platform team on a cluster with real nodes: the steps of `make demo-cluster`, run as a test."""
