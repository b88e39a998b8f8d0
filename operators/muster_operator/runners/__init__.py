"""How jobs are started and stopped on Kubernetes, each way in a package of its own."""
