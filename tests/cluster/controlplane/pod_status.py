"""What a kubelet would write into a pod's status, as KWOK's templates (Go templates that render YAML).

Each begins with VARIABLES, which reads the annotations that stages.py lists.
"""

from __future__ import annotations

PREFIX = "kwok.muster.dev/"
ATTEMPT = "muster.dev/attempt"

_ANNOTATIONS = {
    "stuck": "stuck",
    "ready": "ready-seconds",
    "exit": "exit-code",
    "why": "exit-reason",
    "sidecars": "sidecar-seconds",
    "stop": "stop-seconds",
    "stopExit": "stop-exit-code",
    "ip": "ip",
}

# A value is a list by attempt; its last entry counts for all later attempts.
VARIABLES = f"""
{{{{ $root := . }}}}
{{{{ $now := Now | Quote }}}}
{{{{ $annotations := or .metadata.annotations (dict) }}}}
{{{{ $attempt := atoi (get (or .metadata.labels (dict)) "{ATTEMPT}") }}}}
""" + "".join(
    f"""
{{{{ $list := splitList "," (get $annotations "{PREFIX}{name}") }}}}
{{{{ ${variable} := index $list (int (min $attempt (sub (len $list) 1))) }}}}
"""
    for variable, name in _ANNOTATIONS.items()
)

_ADDRESSES = """
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ if ne $ip "" }}
podIP: {{ $ip | Quote }}
podIPs:
- ip: {{ $ip | Quote }}
{{ else }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ end }}
"""


def _condition(kind: str, status: str, reason: str = "") -> str:
    """An entry of `conditions`; `status` may be a template."""
    lines = [f"- type: {kind}", f'  status: "{status}"', "  lastTransitionTime: {{ $now }}"]
    return "\n".join([*lines, f"  reason: {reason}"] if reason else lines) + "\n"


def _container(ready: str, state: str) -> str:
    """An entry of `containerStatuses` for the container `.`; `state` is what stands below `state:`."""
    return f"""
- name: {{{{ .name | Quote }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  restartCount: 0
  ready: {ready}
  started: {ready}
  state:
    {state.strip()}
"""


_RUNNING = "running: {startedAt: {{ $now }}}"


def _terminated(since: str, code: str, reason: str) -> str:
    return f"terminated: {{startedAt: {since}, finishedAt: {{{{ $now }}}}, exitCode: {code}, reason: {reason}}}"


_SINCE = '{{ dig "state" "running" "startedAt" "" (index $root.status.containerStatuses $index) | Quote }}'
_SIDECAR_SINCE = '{{ dig "state" "running" "startedAt" "" (index $root.status.initContainerStatuses $index) | Quote }}'


def _init_containers(sidecar: str, ordinary: str) -> str:
    """`initContainerStatuses`: what to write for native sidecars, and for the others."""
    return f"""
{{{{ if .spec.initContainers }}}}
initContainerStatuses:
{{{{ range $index, $container := .spec.initContainers }}}}
{{{{ with $container }}}}
{{{{ if eq (or .restartPolicy "") "Always" }}}}
{sidecar}
{{{{ else }}}}
{ordinary}
{{{{ end }}}}
{{{{ end }}}}
{{{{ end }}}}
{{{{ end }}}}
"""


def _main_containers(container: str) -> str:
    return f"""
containerStatuses:
{{{{ range $index, $container := .spec.containers }}}}
{{{{ with $container }}}}
{container}
{{{{ end }}}}
{{{{ end }}}}
"""


def _not_ready(reason: str) -> str:
    return "conditions:\n" + _condition("Ready", "False", reason) + _condition("ContainersReady", "False", reason)


STARTED = (
    VARIABLES
    + "phase: Running\nstartTime: {{ $now }}\n"
    + "{{ $isReady := ternary `True` `False` (eq $ready ``) }}\n"
    + "conditions:\n"
    + _condition("PodReadyToStartContainers", "True")
    + _condition("Initialized", "True")
    + _condition("Ready", "{{ $isReady }}")
    + _condition("ContainersReady", "{{ $isReady }}")
    + "{{ range .spec.readinessGates }}\n"
    + _condition("{{ .conditionType }}", "True")
    + "{{ end }}\n"
    + _main_containers(_container("{{ eq $ready `` }}", _RUNNING))
    + _init_containers(_container("true", _RUNNING), _container("true", _terminated("{{ $now }}", "0", "Completed")))
    + _ADDRESSES
)

READY = (
    VARIABLES
    + "conditions:\n"
    + _condition("Ready", "True")
    + _condition("ContainersReady", "True")
    + _main_containers(_container("true", f"running: {{startedAt: {_SINCE}}}"))
)

STUCK = (
    VARIABLES
    + "phase: Pending\nstartTime: {{ $now }}\n"
    + _not_ready("ContainersNotReady")
    + _main_containers(_container("false", "waiting: {reason: {{ $stuck | Quote }}}"))
)

_EXIT = _terminated(
    _SINCE, "{{ atoi $exit }}", "{{ $why | default (ternary `Completed` `Error` (eq (atoi $exit) 0)) | Quote }}"
)
_SIDECARS_EXIT = _init_containers(
    _container("false", _terminated(_SIDECAR_SINCE, "0", "Completed")),
    "- {{ index $root.status.initContainerStatuses $index | toJson }}",
)

ENDED = (
    VARIABLES
    + "{{ $phase := ternary `Succeeded` `Failed` (eq (atoi $exit) 0) }}\n"
    + "phase: {{ ternary $phase `Running` (eq $sidecars ``) }}\n"
    + _not_ready("{{ ternary `PodCompleted` `PodFailed` (eq (atoi $exit) 0) }}")
    + _main_containers(_container("false", _EXIT))
    + "{{ if eq $sidecars `` }}\n"
    + _SIDECARS_EXIT
    + "{{ end }}\n"
)

SIDECARS_ENDED = (
    VARIABLES
    + "{{ $code := int (dig `state` `terminated` `exitCode` 0 (index .status.containerStatuses 0)) }}\n"
    + "phase: {{ ternary `Succeeded` `Failed` (eq $code 0) }}\n"
    + _SIDECARS_EXIT
)

# Containers that have ended keep their exit code.
STOPPED = (
    VARIABLES
    + "{{ $grace := float64 (or .metadata.deletionGracePeriodSeconds 0) }}\n"
    + "{{ $killed := gt (float64 $stop) $grace }}\n"
    + "{{ $code := ternary 137 (atoi ($stopExit | default `143`)) $killed }}\n"
    + "{{ $ended := dig `state` `terminated` (dict) (index .status.containerStatuses 0) }}\n"
    + "{{ if $ended }}{{ $code = int $ended.exitCode }}{{ end }}\n"
    + "phase: {{ ternary `Succeeded` `Failed` (eq $code 0) }}\n"
    + _not_ready("{{ ternary `PodCompleted` `PodFailed` (eq $code 0) }}")
    + "{{ if not $ended }}\n"
    + _main_containers(
        _container("false", _terminated(_SINCE, "{{ $code }}", "{{ ternary `Completed` `Error` (eq $code 0) }}"))
    )
    + "{{ end }}\n"
    + _SIDECARS_EXIT
)

# A node created with kubectl: it becomes Ready, and keeps its capacity.
NODE = """
{{ $now := Now | Quote }}
phase: Running
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now }}
  lastTransitionTime: {{ $now }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ .metadata.name | Quote }}}
{{ if not .status.allocatable }}
allocatable: {{ or .status.capacity (dict "cpu" "96" "memory" "1Ti" "pods" "110") | toJson }}
{{ end }}
{{ if not .status.capacity }}
capacity: {cpu: "96", memory: 1Ti, pods: "110"}
{{ end }}
{{ with NodePort }}
daemonEndpoints: {kubeletEndpoint: {Port: {{ . }}}}
{{ end }}
nodeInfo:
  architecture: amd64
  bootID: ""
  containerRuntimeVersion: {{ printf "kwok-%s" Version | Quote }}
  kernelVersion: ""
  kubeProxyVersion: ""
  kubeletVersion: {{ printf "kwok-%s" Version | Quote }}
  machineID: ""
  operatingSystem: linux
  osImage: ""
  systemUUID: ""
"""
