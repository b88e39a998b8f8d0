"""Missing requirements of a machine are reported before anything on it is changed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from tests.kubelets import machine

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
USUAL = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t000200C0\t0\t1\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"


def test_an_ordinary_network_does_not_overlap() -> None:
    assert machine.taken(HEAD + USUAL, "search example.com\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n") == []


def test_the_network_of_an_outer_cluster_is_not_taken() -> None:
    pods = "cni0\t0003F40A\t0\t1\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    seen = machine.taken(HEAD + USUAL + pods, "nameserver 10.96.0.10\n")
    assert seen == [("device cni0", "10.244.3.0/24"), ("the name server", "10.96.0.10")]


def test_another_cluster_on_this_machine_is_waited_for() -> None:
    ours = "muster0\t0000610A\t0\t1\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    assert machine.taken(HEAD + USUAL + ours, "") == []


def test_missing_programs_are_named_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert any("apt-get install" in one and "iproute2" in one and " runc" in one for one in machine.missing())


def test_without_root_only_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert machine.missing() == ["kubelets need root: they make namespaces, mounts and cgroups"]
