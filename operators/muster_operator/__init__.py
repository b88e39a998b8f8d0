"""The engine against Kubernetes: watch, plan, apply."""
