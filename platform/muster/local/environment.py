"""What a replica gets from its submitter: annotations, environment variables and the command line.

The client annotates a job (`muster.dev/...`) with its working directory and interpreter, so that relative paths and
`python` mean on the host what they meant to the submitter. Without them a job starts in / with the daemon's Python.

A replica gets variables of its job's submitter, not of the process that started the daemon: those that training
programs read (a list of names and prefixes), those requested by name, the template's literal variables, and the
variables of docs/reference/run-folder.md. The daemon itself is started with fewer variables and without secrets.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.api import spec
from muster.api.quantity import parse_quantity
from muster.errors import ClusterError, InvalidSpec
from muster.local.home import Home
from muster.text import closest_match
from muster.usage.segments import with_user

_ALLOWED = frozenset((
    "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "CC", "CXX", "CUDA_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME",
))  # fmt: skip
_ALLOWED_PREFIXES = ("LC_", "NCCL_", "TORCH_", "NVSHMEM_")
_JOB_VARIABLES = _ALLOWED | {
    "SHELL", "TMP", "TEMP", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "PYTHONPATH", "PYTHONHASHSEED",
    "PYTHONFAULTHANDLER", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PYTHONUTF8", "CUDNN_PATH",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MUSTER_CACHE_DIR",
    "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
_JOB_PREFIXES = (
    *_ALLOWED_PREFIXES, "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "KINETO_", "CUDA_", "CUDNN_",
    "CUBLAS_", "NVIDIA_", "NVTE_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
    "NUMEXPR_", "GLOO_", "UCX_", "FI_", "XLA_", "DS_", "FSDP_", "PL_",
    "HIP_", "HSA_", "ROCR_", "MIOPEN_", "RCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DIFFUSERS_",
    "ACCELERATE_", "DEEPSPEED_", "TIKTOKEN_", "WANDB_", "MLFLOW_", "COMET_", "TENSORBOARD_", "CONDA_",
)  # fmt: skip
_SESSION_VARIABLES = frozenset((
    "_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLUMNS", "LINES",
    "LS_COLORS", "LSCOLORS", "CLICOLOR", "NO_COLOR", "FORCE_COLOR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "PS1",
    "PS2", "PROMPT_COMMAND", "MAIL", "EDITOR", "VISUAL", "PAGER", "MANPATH", "INFOPATH", "HOSTNAME", "HOSTTYPE",
    "MOTD_SHOWN", "WINDOWID", "TMUX", "TMUX_PANE", "STY", "PYTHONUNBUFFERED", "DEBIAN_FRONTEND", "PYTEST_CURRENT_TEST",
))  # fmt: skip
_SESSION_PREFIXES = ("MUSTER_", "XDG_", "SSH_", "DBUS_", "LESS", "HIST", "VSCODE_", "GNOME_", "GTK_", "QT_", "GPG_",
                         "BASH_", "ZSH_")  # fmt: skip
_DAEMON_VARIABLES = (
    "MUSTER_HOME", "MUSTER_IDLE_SECONDS", "MUSTER_COLLECTOR", "MUSTER_LOG_LIMIT", "MUSTER_BOOT_ID_FILE", "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR",
)  # fmt: skip
_ENVIRONMENT_FILE = "environment.json"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_PREFIX = "muster.dev/"
WORKING_DIRECTORY_ANNOTATION = _PREFIX + "working-directory"
INTERPRETER_ANNOTATION = _PREFIX + "interpreter"  # the folder of `python`
SUBMISSION_ANNOTATION = _PREFIX + "submission"  # the same for every attempt to send one submission
PASS_ENVIRONMENT_ANNOTATION = _PREFIX + "pass-environment"  # names of additional variables, separated by commas
LOG_LIMIT_ANNOTATION = _PREFIX + "log-limit"  # replaces the daemon's limit; 0 for none
CODE_ANNOTATION = _PREFIX + "code"  # what was submitted, such as a git commit
COMMAND_ANNOTATION = _PREFIX + "command"  # as the user gave it to `muster run`
STAGED_ANNOTATION = _PREFIX + "staged"  # the folder that becomes `submission/` of the run folder
OVERSUBSCRIBE_ANNOTATION = _PREFIX + "oversubscribe"  # allows more processes than a node has cores, or a pod GPUs
SUBMITTER_ANNOTATIONS = frozenset(
    {WORKING_DIRECTORY_ANNOTATION, INTERPRETER_ANNOTATION, SUBMISSION_ANNOTATION, PASS_ENVIRONMENT_ANNOTATION}
)
_KNOWN = SUBMITTER_ANNOTATIONS | {
    *(LOG_LIMIT_ANNOTATION, OVERSUBSCRIBE_ANNOTATION, CODE_ANNOTATION, COMMAND_ANNOTATION, STAGED_ANNOTATION)
}
_MIN_LOG_LIMIT_BYTES = 2**20
MAX_ARGUMENT_BYTES = 32 * os.sysconf("SC_PAGE_SIZE") - 1
"""Most bytes of one argument or variable (`NAME=value`) of a process: Linux' MAX_ARG_STRLEN without the final NUL."""


def check_annotations(job: spec.TrainingJob, old: spec.TrainingJob | None = None) -> None:
    """Raises `InvalidSpec` for an unknown name, and for a value that is invalid or immutable; `old` is the stored
    job."""
    _refuse_unknown(job)
    if problem := process_text_problem(job.metadata.annotations.get(INTERPRETER_ANNOTATION, "")):
        field = f"metadata.annotations[{INTERPRETER_ANNOTATION}]"
        raise InvalidSpec(f"{field}: {problem}", field=field)
    job_log_limit(job, 0)
    allows_oversubscription(job)
    if (
        old is not None
        and PASS_ENVIRONMENT_ANNOTATION in job.metadata.annotations
        and set(passed_variables(job)) != set(passed_variables(old))
    ):
        field = f"metadata.annotations[{PASS_ENVIRONMENT_ANNOTATION}]"
        stored, given = ",".join(passed_variables(old)), ",".join(passed_variables(job))
        raise InvalidSpec(
            f"{field}: must be {stored!r} or omitted: a job keeps the environment of its submission; got {given!r};"
            " to change it, delete the job and submit it again",
            field=field,
        )


def process_text_problem(text: str) -> str | None:
    """Why no process can be started with this argument, or with this variable as `NAME=value`; None if one can."""
    if "\0" in text:
        return "must not contain the character NUL"
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        return "must be valid Unicode"
    return f"must have at most {MAX_ARGUMENT_BYTES} bytes; got {size}" if size > MAX_ARGUMENT_BYTES else None


def _refuse_unknown(job: spec.TrainingJob) -> None:
    known = sorted(name.removeprefix(_PREFIX) for name in _KNOWN)
    for name in job.metadata.annotations:
        if name.startswith(_PREFIX) and name not in _KNOWN:
            field = f'metadata.annotations["{name}"]'
            near = closest_match(name.removeprefix(_PREFIX), known)
            hint = f"did you mean {_PREFIX + near!r}?" if near else f"valid on this host: {', '.join(sorted(_KNOWN))}"
            raise InvalidSpec(f"{field}: unknown annotation; {hint}", field=field)


def annotate_submitter(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with the annotations of its submission, and the label of this user. Existing values are kept, except the
    submission's id: a job that was exported and is submitted again is a new submission."""
    working = {WORKING_DIRECTORY_ANNOTATION: os.getcwd(), INTERPRETER_ANNOTATION: str(Path(sys.executable).parent)}
    annotated = _annotated(job, working | job.metadata.annotations | {SUBMISSION_ANNOTATION: uuid.uuid4().hex})
    return with_user(annotated, user_name())


def user_name() -> str:
    """The name of this process's user; its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def pass_variables(job: spec.TrainingJob, names: Sequence[str]) -> spec.TrainingJob:
    """The job with these variables of its submitter's environment in addition to those that every job gets."""
    if not names:
        return job
    passed = ",".join(dict.fromkeys([*passed_variables(job), *names]))
    return _annotated(job, {**job.metadata.annotations, PASS_ENVIRONMENT_ANNOTATION: passed})


def passed_variables(job: spec.TrainingJob) -> list[str]:
    """Names of the variables that the job gets in addition to those that every job gets."""
    names = job.metadata.annotations.get(PASS_ENVIRONMENT_ANNOTATION, "").replace(" ", "").split(",")
    return [name for name in names if name]


def job_log_limit(job: spec.TrainingJob, default: int) -> int:
    """Most bytes that a replica's log may have; 0 for no limit. Raises `InvalidSpec` for an invalid annotation."""
    text = job.metadata.annotations.get(LOG_LIMIT_ANNOTATION)
    if text is None:
        return default
    field = f"metadata.annotations[{LOG_LIMIT_ANNOTATION}]"
    limit = parse_log_limit(text)
    if limit is None:
        raise InvalidSpec(f"{field}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}", field=field)
    return limit


def parse_log_limit(text: str) -> int | None:
    """Bytes, 0 for no limit; None if the text is invalid."""
    try:
        limit = parse_quantity(text, "memory")
    except ValueError:
        return None
    return limit if limit == 0 or limit >= _MIN_LOG_LIMIT_BYTES else None


def allow_oversubscription(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with the annotation that allows more processes than cores."""
    return _annotated(job, {**job.metadata.annotations, OVERSUBSCRIBE_ANNOTATION: "true"})


def allows_oversubscription(job: spec.TrainingJob) -> bool:
    """Whether the annotation is true. Raises `InvalidSpec` if it is neither true nor false."""
    text = job.metadata.annotations.get(OVERSUBSCRIBE_ANNOTATION, "false")
    if text not in ("true", "false"):
        field = f"metadata.annotations[{OVERSUBSCRIBE_ANNOTATION}]"
        raise InvalidSpec(f'{field}: must be "true" or "false"; got {text!r}', field=field)
    return text == "true"


def _annotated(job: spec.TrainingJob, annotations: dict[str, str]) -> spec.TrainingJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The resources of this host that one pod uses, and the grace period with which it is stopped."""

    run_dir: str
    devices: tuple[str, ...]  # for CUDA_VISIBLE_DEVICES
    rank0_port: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod of one attempt."""

    name: str
    role: str
    index: int
    replicas: int
    attempt: int


def allowed_environment(environ: Mapping[str, str], bin_folder: str) -> dict[str, str]:
    """The part of `environ` for the daemon, and for jobs submitted without an environment; PATH begins with
    `bin_folder`, so that `python` is this interpreter."""
    allowed = {name: value for name, value in environ.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)}
    folders = [folder for folder in (environ.get("PATH") or os.defpath).split(os.pathsep) if folder != bin_folder]
    return allowed | {"PATH": os.pathsep.join([bin_folder, *folders])}


def daemon_environment(environ: Mapping[str, str], bin_folder: str) -> dict[str, str]:
    """The environment that the daemon is started with: no secrets."""
    return allowed_environment(environ, bin_folder) | {
        name: environ[name] for name in _DAEMON_VARIABLES if name in environ
    }


def submitted_environment(environ: Mapping[str, str], bin_folder: str, names: Sequence[str] = ()) -> dict[str, str]:
    """The part of its submitter's `environ` that a job gets, including `names`; PATH begins with `bin_folder`. Raises
    `InvalidSpec` for one of `names` that is not set."""
    missing = [name for name in names if name not in environ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise InvalidSpec(f"env: {', '.join(missing)} {verb} not set in your environment; set it or leave it out")
    passed = {name: value for name, value in environ.items() if _is_job_variable(name) or name in names}
    return passed | {"PATH": allowed_environment(environ, bin_folder)["PATH"]}


def omitted_env_vars(environ: Mapping[str, str], names: Sequence[str] = ()) -> list[str]:
    """Names of the variables that a job does not get although its submitter may expect it; those of a terminal or
    desktop session are not listed."""
    return sorted(
        name
        for name in environ
        if not (_is_job_variable(name) or name in names or name == "PATH" or name in _SESSION_VARIABLES)
        and not name.startswith(_SESSION_PREFIXES)
    )


def _is_job_variable(name: str) -> bool:
    return name in _JOB_VARIABLES or name.startswith(_JOB_PREFIXES)


_MAX_LOOPBACK = 254


def pod_environment(
    base: Mapping[str, str], job: spec.TrainingJob, pod: PodIdentity, allocation: PodAllocation
) -> dict[str, str]:
    """`base`, then the template's literal variables, then those of docs/reference/run-folder.md; later ones win."""
    role = next(role for role in job.spec.roles if role.name == pod.role)
    environment = dict(base) | {"PYTHONUNBUFFERED": "1"}  # else a followed log arrives in blocks of 8 KiB
    if pod.replicas > 1 and pod.index < _MAX_LOOPBACK:
        # An elastic torchrun numbers its nodes by address: replica 0, whose log is shown first, gets rank 0.
        environment["PET_LOCAL_ADDR"] = f"127.0.0.{pod.index + 1}"
    contract = {  # docs/reference/run-folder.md
        "MUSTER_JOB": job.metadata.name,
        "MUSTER_NAMESPACE": job.metadata.namespace or "default",
        "MUSTER_JOB_UID": job.metadata.uid.replace("/", "-"),
        "MUSTER_POD": pod.name,
        "MUSTER_ROLE": pod.role,
        "MUSTER_REPLICA": str(pod.index),
        "MUSTER_REPLICAS": str(pod.replicas),
        "MUSTER_ATTEMPT": str(pod.attempt),
        "MUSTER_RUN_DIR": allocation.run_dir,
        "MUSTER_RANK0_HOST": "127.0.0.1",
        "MUSTER_RANK0_PORT": str(allocation.rank0_port),
        "MUSTER_GRACE_SECONDS": str(round(allocation.grace_s)),
        "CUDA_VISIBLE_DEVICES": ",".join(allocation.devices),
    }
    if job.spec.array is not None:
        from muster.kinds.trainingjob.arrays import array_variables  # each start of `muster` imports this module

        contract |= array_variables(job)
    if job.spec.checkpoint_dir is not None:
        contract["MUSTER_CHECKPOINT_DIR"] = job.spec.checkpoint_dir
    trace = job.spec.trace
    if trace is not None:
        contract["MUSTER_TRACE_STEPS"] = f"{trace.start_step}:{trace.start_step + trace.steps}"
        contract["MUSTER_TRACE_RANKS"] = ",".join(str(rank) for rank in trace.ranks)
        contract |= {} if trace.every is None else {"MUSTER_TRACE_EVERY": str(trace.every)}
        contract |= {} if trace.when_slower is None else {"MUSTER_TRACE_WHEN_SLOWER": str(trace.when_slower)}
    for variable in role.template.spec.containers[0].env:
        environment[variable.name] = expand_references(variable.value or "", environment | contract)
    return environment | contract


def command_line(container: spec.Container, environment: Mapping[str, str]) -> list[str]:
    """Command and arguments with `$(NAME)` replaced, as a kubelet does."""
    return [expand_references(part, environment) for part in (*container.command, *container.args)]


def expand_references(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` one dollar sign; an unknown name is left as it is."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def find_executable(program: str, folders: Sequence[str], cwd: str) -> str | None:
    """The executable file that exec would run for `program`, or None."""
    if "/" in program:
        candidates = [os.path.join(cwd, program)]
    else:
        candidates = [os.path.join(cwd, folder, program) for folder in folders]
    return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def submitter_environment(job: spec.TrainingJob) -> dict[str, str]:
    """The part of this process's environment that a job submitted by it gets. Raises `InvalidSpec` for a variable that
    the job requests and that is not set."""
    return submitted_environment(os.environ, str(Path(sys.executable).parent), passed_variables(job))


def working_directory(job: spec.TrainingJob, container: spec.Container) -> str:
    """The folder in which a replica starts: workingDir, relative to the submitter's working directory."""
    base = job.metadata.annotations.get(WORKING_DIRECTORY_ANNOTATION, "/")
    return os.path.normpath(os.path.join(base, container.working_dir or "."))


def interpreter_environment(base: Mapping[str, str], job: spec.TrainingJob) -> dict[str, str]:
    """`base` with the submitter's interpreter first on PATH, and VIRTUAL_ENV if it is a virtual environment."""
    folder = job.metadata.annotations.get(INTERPRETER_ANNOTATION)
    if folder is None:
        return dict(base)
    others = [other for other in base["PATH"].split(os.pathsep) if other != folder]
    environment = {name: value for name, value in base.items() if name != "VIRTUAL_ENV"}
    if (Path(folder).parent / "pyvenv.cfg").exists():
        environment["VIRTUAL_ENV"] = str(Path(folder).parent)
    return environment | {"PATH": os.pathsep.join([folder, *others])}


@dataclass(frozen=True, slots=True)
class JobEnvironmentStore:
    """The environment of each job's submission, by uid of the job: in a file of mode 600, since it may hold tokens.

    It is no part of the objects, which are printed, and is removed with its job.
    """

    home: Home

    def save(self, uid: str, environment: Mapping[str, str]) -> None:
        """Write it to the disk (fsync). Raises `ClusterError` StoreUnwritable."""
        folder = self.home.job_pods_dir(uid)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder)  # of mode 600
            with os.fdopen(handle, "w") as file:
                json.dump(dict(environment), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folder / _ENVIRONMENT_FILE)
        except OSError as error:
            message = f"the job's environment cannot be written to {folder}: {error.strerror}"
            raise ClusterError(message, reason="StoreUnwritable") from error

    def load(self, uid: str) -> dict[str, str] | None:
        """The environment of a job; None if none was submitted with it. Raises OSError."""
        path = self.home.job_pods_dir(uid) / _ENVIRONMENT_FILE
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise OSError(f"{path} cannot be read") from error
        return {str(name): str(value) for name, value in content.items()}

    def delete(self, uid: str) -> None:
        """Remove the environment of a job that was not accepted."""
        shutil.rmtree(self.home.job_pods_dir(uid), ignore_errors=True)

    def delete_all_except(self, uids: Collection[str]) -> None:
        """Remove environments without a job, which a killed daemon may have left."""
        with suppress(OSError):
            for folder in self.home.pods_dir.iterdir():
                if folder.name not in uids:
                    self.delete(folder.name)
