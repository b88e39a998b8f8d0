"""The fields of a pod template that `muster submit` knows are those of the pinned Kubernetes."""

from __future__ import annotations

from tests.cluster.controlplane.plane import ControlPlane
from tools.pod_fields import FILE, fetch_pod_fields


def test_the_fields_of_a_pod_template_are_those_of_the_pinned_kubernetes(control_plane: ControlPlane) -> None:
    assert fetch_pod_fields(control_plane.api) == FILE.read_text(), "run: make pod-fields"
