"""Installation, queues, jobs and the loss of a node on a cluster with real nodes: the steps of `make demo-cluster`, as
a test."""
