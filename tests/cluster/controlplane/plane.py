"""Starts a control plane, and ends it with its owner.

with ControlPlane.start(folder) as plane:
    plane.add_nodes(4)
    plane.kubectl("get", "nodes")
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from tests.cluster.controlplane import commands, nodes, stages
from tests.cluster.controlplane.access import ADMIN, MASTERS, Users, write_key, write_kubeconfig
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.binaries import Binary, ensure
from tests.cluster.controlplane.catalogue import CURRENT, SERVERS, Release
from tests.cluster.controlplane.certificates import Authority
from tests.cluster.controlplane.clients import run_client, write_log
from tests.cluster.controlplane.commands import Layout
from tests.cluster.controlplane.supervised import Supervised

READY_S = 300  # of what takes seconds on an idle machine
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
# People without any rights, so that a test can give them some without a restart of the API server.
PEOPLE: Mapping[str, tuple[str, ...]] = {"alice": ("team-a",), "bob": ("team-b",), "carol": ()}


@dataclass(frozen=True, slots=True)
class Options:
    """Which programs run beside etcd, API server and controller manager, and the feature gates of all of them."""

    scheduler: bool = True
    kwok: bool = True
    release: Release = CURRENT
    gates: tuple[str, ...] = ()
    readable: bool = False  # etcd stores JSON, for tests that watch etcd itself
    audited: bool = False  # the API server keeps a log of all changes
    controllers: tuple[str, ...] = ()  # more flags of the controller manager
    service: str = ""  # the API server's address for the pods of real kubelets; this machine has it already
    crds: Path | None = None  # created before the controller manager starts


class ControlPlane:
    """A running control plane. It ends with `stop()`, or with this process, however that ends."""

    def __init__(self, folder: Path, binaries: Mapping[str, Binary], options: Options) -> None:
        """Use `start`."""
        self.folder = folder
        self.binaries = dict(binaries)
        self._options = options
        self._layout = Layout.on_free_ports(folder, options.service)
        self._users = Users(self._layout.tokens)
        self._apis: dict[str, Api] = {}
        self._programs: dict[str, Supervised] = {}

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        scheduler: bool = True,
        kwok: bool = True,
        release: Release = CURRENT,
        gates: Sequence[str] = (),
        readable: bool = False,
        audited: bool = False,
        controllers: Sequence[str] = (),
        service: str = "",
        crds: Path | None = None,
    ) -> ControlPlane:
        """Start one with its files in `folder`, which is made; returns when pods can be created.

        `release` is that of its servers. `gates` are feature gates to turn on; with `release.gang_gates` the native
        gang API is served. `readable`: objects lie in etcd as JSON, so that everything that happens can be read there,
        in one order. `audited`: see `changes`. `controllers`: flags of the controller manager after our own. `service`:
        the address, port 443, of the API server, for real kubelets (tests/kubelets). `crds`: a file of CRDs that are
        there from the start; the garbage collector looks for new kinds only every 30 s, and deletes no pods of their
        objects before.
        Raises `binaries.Unavailable` where a program is missing, Died where one ends.
        """
        binaries = ensure(release=release)
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        options = Options(scheduler, kwok, release, tuple(gates), readable, audited, tuple(controllers), service, crds)
        plane = cls(folder, binaries, options)
        try:
            plane._start()
        except BaseException:
            plane.stop()
            raise
        return plane

    def _start(self) -> None:
        layout = self._layout
        write_key(layout.key)
        self.proxy_authority = Authority(layout.proxy, "front-proxy-ca")
        self.proxy_authority.issue(commands.PROXY)
        for user, groups in {ADMIN: (MASTERS,), **PEOPLE}.items():
            self._users.add(user, groups)
        self._run("etcd", commands.etcd(layout), leftover=layout.data)
        self._run_apiserver()
        self.wait_for("the API server is ready", self._answers)
        if self._options.crds is not None:
            self.create_crds(self._options.crds)
        self._run_controller_manager()
        if self._options.scheduler:
            self._run_scheduler()
        if self._options.kwok:
            self._run_kwok()
        self.wait_for("pods can be created", lambda: not self.api.gone(_ACCOUNT))

    # Who may do what

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._layout.server

    @property
    def etcd(self) -> str:
        """The address of etcd, without TLS; see `readable`."""
        return f"http://127.0.0.1:{self._layout.etcd_port}"

    @property
    def release(self) -> Release:
        """The release that its servers run now."""
        return self._options.release

    @property
    def authority(self) -> Path:
        """The certificate by which clients know the API server."""
        return self._layout.authority

    @property
    def api(self) -> Api:
        """The API as its administrator."""
        return self.api_as(ADMIN)

    def api_as(self, user: str) -> Api:
        """The API as a user of `token_for`."""
        if user not in self._apis:
            self._apis[user] = Api(self.server, self.authority, self.token_for(user))
        return self._apis[user]

    def token_for(self, user: str, groups: Sequence[str] = ()) -> str:
        """A user's token. The API server has to be restarted for a user who is neither admin nor in PEOPLE."""
        known = self._users.tokens.get(user)
        if known and (not groups or self._users.groups[user] == tuple(groups)):
            return known
        token = self._users.add(user, groups)
        self._apis.pop(user, None)
        self.restart_apiserver()
        return token

    def token_for_service_account(self, namespace: str, name: str) -> str:
        """A token as a pod of that service account would get it, for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.api.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        return token

    def kubeconfig(self, user: str = ADMIN, *, token: str | None = None, namespace: str = "default") -> Path:
        """A kubeconfig file for a user, or with `token`; `user` then only names the file."""
        path = self.folder / "kubeconfigs" / f"{user}.{namespace}"
        path.parent.mkdir(exist_ok=True)
        return write_kubeconfig(path, self.server, self.authority, token or self.token_for(user), namespace)

    # Commands

    def kubectl(self, *arguments: str, user: str = ADMIN, stdin: str = "") -> str:
        """Run kubectl as a user; its standard output. CommandFailed where it fails."""
        return run_client(self.binaries["kubectl"].path, arguments, self.kubeconfig(user), stdin)

    def helm(self, *arguments: str, user: str = ADMIN) -> str:
        """Run Helm as a user; its standard output. CommandFailed where it fails."""
        return run_client(self.binaries["helm"].path, arguments, self.kubeconfig(user))

    def write_log(self, text: str) -> None:
        """Let this be the log of every pod from now on."""
        write_log(self._layout.log, text)

    def create_crds(self, file: Path) -> None:
        """Create the CRDs of a file that are not there, and wait until they are served."""
        for crd in yaml.safe_load_all(file.read_text()):
            if self.api.gone(f"{CRDS}/{crd['metadata']['name']}"):
                self.api.create(CRDS, crd)
        self.wait_until_served(file)

    def wait_until_served(self, file: Path) -> None:
        """Wait until objects of all kinds that a file of CRDs defines can be listed."""
        for crd in yaml.safe_load_all(file.read_text()):
            spec = crd["spec"]
            for version in spec["versions"]:
                path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
                self.wait_for(f"{path} is served", lambda path=path: self._lists(path))  # type: ignore[misc]

    def _lists(self, path: str) -> bool:
        """Whether a collection can be listed: until a CRD counts the answer is 404, then 429."""
        try:
            self.api.get(path)
        except Refused:
            return False
        return True

    # Nodes

    def add_nodes(
        self, count: int, shape: nodes.Shape | None = None, *, prefix: str = "node", first: int = 0
    ) -> list[str]:
        """Add the nodes PREFIX-FIRST and following, all Ready; their names."""
        shape = shape or nodes.Shape()
        names = [f"{prefix}-{index}" for index in range(first, first + count)]
        api = self.api

        def register(name: str, index: int) -> None:
            api.create("/api/v1/nodes", nodes.manifest(name, shape, shape.place(index), self._layout.kubelet_port))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(register, names, range(first, first + count)))
        return names

    def delete_nodes(self, *names: str) -> None:
        """Delete nodes. Their pods are removed by the controller manager, as in a cluster."""
        for name in names:
            self.api.delete(f"/api/v1/nodes/{name}")

    def set_ready(self, name: str, ready: str, since: datetime | None = None) -> None:
        """Make a node's Ready condition "True", "False" or "Unknown", since now or another time."""
        self.api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": nodes.conditions(ready, since)}})

    def stop_kubelet(self, name: str, witness: str = "") -> None:
        """From now on nothing happens to the node's pods: they neither start, end nor stop. Its status stays.

        KWOK learns of it a moment later. With `witness`, another node that it plays, this returns once it knows.
        """
        self.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {nodes.KUBELET: "stopped"}}})
        if witness:
            self.wait_for(
                f"KWOK has left {name} alone",  # it plays many pods at once: twice, to be sure
                lambda: not self._starts_pods(name, witness) and not self._starts_pods(name, witness),
            )

    def _starts_pods(self, name: str, witness: str) -> bool:
        """Whether a pod on this node has started by the time when a later one on the witness has."""
        pods, tried = "/api/v1/namespaces/default/pods", ("kubelet-tried", "kubelet-witness")
        for pod, node in zip(tried, (name, witness), strict=True):
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
            self.api.create(pods, {"metadata": {"name": pod}, "spec": spec})

        def started(pod: str) -> bool:
            return bool(self.api.get(f"{pods}/{pod}")["status"]["phase"] == "Running")

        self.wait_for("a pod starts where the kubelet runs", lambda: started(tried[1]))
        starts = started(tried[0])
        for pod in tried:
            self.api.delete(f"{pods}/{pod}", gracePeriodSeconds=0)
            self.wait_for("it is gone", lambda pod=pod: self.api.gone(f"{pods}/{pod}"))  # type: ignore[misc]
        return starts

    def resume_kubelet(self, name: str) -> None:
        """Undo `stop_kubelet`."""
        self.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {nodes.KUBELET: None}}})

    # The programs

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again on the same data; returns when it is ready."""
        self.kill_apiserver()
        self.resume_apiserver()

    def kill_apiserver(self) -> None:
        """Kill the API server with SIGKILL, and leave it so until `resume_apiserver`."""
        self._programs.pop("kube-apiserver").kill()

    def resume_apiserver(self) -> None:
        """Start the API server again after `kill_apiserver`; returns when it is ready."""
        self._run_apiserver()
        self.wait_for("the API server is ready again", self._answers, of=("etcd", "kube-apiserver"))
        self.revive_scheduler()
        if "kwok" in self._programs:  # it forgets what it was about to write when its connection breaks
            self._programs.pop("kwok").kill()
            self._run_kwok()

    def change_release(self, release: Release, gates: Sequence[str] = ()) -> None:
        """Run the servers of another release, or with other feature gates, on the same data, as an upgrade does: first
        the API server, then the others; returns when the API server is ready."""
        self.binaries |= ensure(SERVERS, release=release)
        self._options = replace(self._options, release=release, gates=tuple(gates))
        self.restart_apiserver()
        self._programs.pop("kube-controller-manager").stop()
        self._run_controller_manager()
        if self._options.scheduler:
            self._programs.pop("kube-scheduler").stop()
            self._run_scheduler()

    def revive_scheduler(self) -> None:
        """Start kube-scheduler again if it has ended, as a kubelet would: after its watch broke it gives itself up when
        what it lists contradicts its cache ("Scheduler cache is corrupted")."""
        if self._options.scheduler and self._programs["kube-scheduler"].ended:
            self._programs.pop("kube-scheduler").stop()
            self._run_scheduler()

    def changes(self) -> list[dict[str, Any]]:
        """All calls so far that did more than read, as audit events, of a control plane that is `audited`."""
        return [json.loads(line) for line in self._layout.audit.read_text().splitlines()]

    def pid(self, program: str) -> int:
        """A program's process id."""
        return self._programs[program].pid

    def stop(self) -> None:
        """End everything, newest first. What etcd stored is removed; logs stay."""
        for program in reversed(list(self._programs.values())):
            program.stop()
        self._programs.clear()
        shutil.rmtree(self._layout.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, name: str, flags: list[str], leftover: Path | None = None) -> None:
        command = [str(self.binaries[name].path), *flags]
        self._programs[name] = Supervised(name, command, self.folder, leftover)

    def _run_apiserver(self) -> None:
        options = self._options
        apis = [options.release.gang_api] if set(options.gates) & set(options.release.gang_gates) else []
        flags = commands.apiserver(
            self._layout, options.gates, apis=apis, readable=options.readable, audited=options.audited
        )
        self._run("kube-apiserver", flags)

    def _run_controller_manager(self) -> None:
        flags = commands.controller_manager(self._layout, self.kubeconfig(), self._options.gates)
        self._run("kube-controller-manager", [*flags, *self._options.controllers])

    def _run_scheduler(self) -> None:
        self._run("kube-scheduler", commands.scheduler(self._layout, self.kubeconfig(), self._options.gates))

    def _run_kwok(self) -> None:
        write_log(self._layout.log, "")
        written = stages.write_stages(self.folder / "kwok.yaml", self._layout.log)
        self._run("kwok", commands.kwok(self._layout, self.kubeconfig(), written))

    def _answers(self) -> bool:
        if not self.authority.exists():
            return False
        try:
            self.api.get("/readyz")
        except (Refused, OSError, http.client.HTTPException):
            return False
        return True

    def wait_for(
        self, what: str, holds: Callable[[], bool], seconds: float = READY_S, of: Collection[str] | None = None
    ) -> None:
        """Return when it holds. Raises Died when a program (one `of` these) ends, AssertionError if it takes long."""
        until, pause = time.monotonic() + seconds, 0.02
        while not holds():
            for name, program in self._programs.items():
                if of is None or name in of:
                    program.check()
            if time.monotonic() > until:
                raise AssertionError(f"not within {seconds} s: {what}; the logs are in {self.folder}")
            time.sleep(pause)
            pause = min(pause * 1.2, 0.5)  # a look may cost the API server a lot
