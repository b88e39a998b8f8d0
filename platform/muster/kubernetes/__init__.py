"""A cluster of Kubernetes as those see it who submit to it: the client of `muster` and of `torchx run -s muster`.

It talks to the API server alone, with the rights of its user. What runs in the cluster is the operator's matter.
docs/kubernetes.md is the page for users.
"""
