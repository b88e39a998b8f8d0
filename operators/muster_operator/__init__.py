"""The operator: runs the engine against the Kubernetes API (watch, decide, write)."""
