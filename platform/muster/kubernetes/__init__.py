"""The Kubernetes client of `muster` and of `torchx run -s muster`; user documentation: docs/kubernetes.md.

It only uses the API server, with the rights of its user. The operator reconciles what it submits.
"""
