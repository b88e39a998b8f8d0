"""What `muster` and `torchx run -s muster` do on a Kubernetes cluster; user documentation: docs/tasks/kubernetes.md.

`client.KubernetesClusterClient` has one method per verb. It only uses the API server, with the rights of its user. The
operator reconciles what it submits.
"""
