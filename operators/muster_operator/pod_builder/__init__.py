"""Manifests of pods, Services, Secrets, PodGroups and Events, and status patches. Pure."""
