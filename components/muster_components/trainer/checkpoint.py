"""The state in checkpoints, and resuming from the newest readable one. `checkpoint_saver` saves.

Loading: all ranks together compare every file with its digest. Then tensors are read by name and resharded, so world
size and parallelism may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load

from muster_components.trainer.checkpoint_files import CheckedPlanner, CheckedReader, read_metadata
from muster_components.trainer.checkpoint_manifest import FileDigest, read_digests, verify_files
from muster_components.trainer.checkpoint_saver import CheckpointSaver, SaveOptions
from muster_components.trainer.checkpoint_store import (
    DESCRIPTION,
    CheckpointCandidate,
    CheckpointStore,
    describe_mismatch,
    read_description,
)
from muster_components.trainer.errors import InputError, TrainerError
from muster_components.trainer.models.module_tree import unique_tensors
from muster_components.trainer.parallel.float8 import without_float8
from muster_components.trainer.reporter import Reporter

# torch combines the errors of several ranks into an exception that is not a subclass of Exception.
_FAILURES: Final = (Exception, CheckpointException)
_FLAT: Final = StateDictOptions(flatten_optimizer_state_dict=True)
_MODEL: Final = "model."
"""How names of weights begin in the metadata."""
_SHOWN: Final = 4
_STATE: Final = "state."
"""How flattened names of optimizer state begin; the others are options of the parameter groups."""


class Checkpointer:
    """Saves and restores the parts of a model and their optimizers, by the names of parameters in the whole model.

    Every rank calls every method in the same order.
    """

    def __init__(
        self,
        store: CheckpointStore,
        parts: Sequence[tuple[nn.Module, torch.optim.Optimizer]],
        reporter: Reporter,
        fingerprint: dict[str, object],
        tied: Mapping[str, str] | None = None,
        options: SaveOptions | None = None,
    ) -> None:
        """`fingerprint`: the values that a later run must match to resume from these checkpoints; `tied`: further names
        of tied parameters with the first one, by which they are saved once."""
        self._store = store
        self._parts = parts
        self._reporter = reporter
        self._fingerprint = fingerprint
        self._tied = tied or {}
        self.saver = CheckpointSaver(store, parts, reporter, fingerprint, self._state_dict, options or SaveOptions())
        self._group = self.saver.group
        self._is_rank0 = dist.get_rank() == 0

    def restore(self, *, anew: bool) -> int:
        """Load the newest readable checkpoint; returns its step, or 0 without checkpoints. `anew`: the first attempt of
        a run begins without any, and later attempts resume from those of the run only.

        Unreadable checkpoints are reported and skipped. Raises InputError if the newest readable one does not match
        this run, TrainerError if there are checkpoints and none can be read.
        """
        if anew and self._store.keep == 0:
            return 0  # nothing will be saved, so the checkpoints of others keep their value
        candidates = self._candidates(anew)
        if not candidates:
            return 0
        for candidate in candidates:
            mismatch, files, failure = self._read_description(candidate)
            if mismatch:
                raise InputError(
                    f"checkpoint {candidate.path} does not match this run: {'; '.join(mismatch)}. "
                    "Use the old values, another --output, or --resume never"
                )
            failure = failure or self._load(candidate, files)
            if failure is None:
                self._record_event(
                    "resumed", f"resumed after step {candidate.step} from {candidate.path}", candidate.step
                )
                return candidate.step
            self._record_event(
                "checkpoint_unreadable", f"checkpoint {candidate.path} cannot be read: {failure}", candidate.step
            )
        raise TrainerError(
            f"none of the {len(candidates)} checkpoints in {self._store.folder} can be read; "
            "--resume never starts from the beginning"
        )

    def load_weights(
        self, candidates: Sequence[CheckpointCandidate], whole: nn.Module, architecture: dict[str, object] | None
    ) -> None:
        """Set the weights, and nothing else, from the first of the checkpoints that is undamaged.

        `whole`: the model on the meta device; `architecture`: what that of the checkpoint must be, if it matters.
        Raises InputError if names or shapes differ from the model's, TrainerError if none can be read.
        """
        failures = []
        for candidate in candidates:
            described: list[dict[str, object]] = []
            files: list[tuple[FileDigest, ...] | None] = []
            metadata: list[Metadata] = []

            def read(
                path: Path = candidate.path, described: Any = described, files: Any = files, metadata: Any = metadata
            ) -> None:
                described.append(read_description(path))
                files.append(read_digests(described[0]))
                names = None if files[0] is None else {file.name for file in files[0]}
                metadata.append(read_metadata(path, names))

            failure = self._on_all_ranks(read)
            failure = failure or self._verify(candidate, files[0])
            if failure is None:
                _require_same_weights(candidate.path, described[0], metadata[0], whole, architecture)
                failure = self._load_model(candidate, metadata[0])
            if failure is None:
                self._record_event("initialized", f"the first weights are those of {candidate.path}", 0)
                return
            failures.append(f"{candidate.path}: {failure}")
        raise TrainerError(f"--init_from: no checkpoint can be read: {'; '.join(failures)}")

    def _load_model(self, candidate: CheckpointCandidate, metadata: Metadata) -> TrainerError | None:
        state = {"model": self._model_state()}
        reader = CheckedReader(candidate.path, metadata)
        try:
            load(state, storage_reader=reader, planner=CheckedPlanner(), process_group=self._group)
        except _FAILURES as error:
            return TrainerError(str(_root_cause(error)))
        self._set_model(state["model"])
        return None

    def _set_model(self, weights: Mapping[str, Any]) -> None:
        for module, _ in self._parts:
            own = {name: weights[self._saved(name)] for name in get_model_state_dict(module)}
            set_model_state_dict(module, own)

    def _candidates(self, anew: bool) -> list[CheckpointCandidate]:
        found: list[list[CheckpointCandidate] | str] = [[]]
        if self._is_rank0:
            try:
                self._store.latest()
            except ValueError as error:
                self._reporter.record_event("checkpoint_unreadable", f"{error}; using the newest complete checkpoint")
            try:
                if anew:
                    self._store.begin_lineage()
                found = [self._store.candidates()]
            except (OSError, ValueError) as error:
                found = [str(error)]
        dist.broadcast_object_list(found, src=0, group=self._group)
        if isinstance(found[0], str):
            raise TrainerError(found[0])
        return found[0]

    def _read_description(
        self, candidate: CheckpointCandidate
    ) -> tuple[list[str], tuple[FileDigest, ...] | None, TrainerError | None]:
        """Rank 0 reads and broadcasts: mismatches, the files (None: without digests), or why it cannot be read."""
        result: list[Any] = [None]
        if self._is_rank0:
            try:
                described = read_description(candidate.path)
                result = [(describe_mismatch(described, self._fingerprint), read_digests(described), None)]
            except Exception as error:  # any error must be broadcast: the other ranks wait
                result = [([], None, TrainerError(f"{DESCRIPTION}: {error}"))]
        dist.broadcast_object_list(result, src=0, group=self._group)
        return cast(tuple[list[str], tuple[FileDigest, ...] | None, TrainerError | None], result[0])

    def _load(self, candidate: CheckpointCandidate, files: tuple[FileDigest, ...] | None) -> TrainerError | None:
        """Verify all files, then load them; returns the failure, the same on all ranks."""
        failure = self._verify(candidate, files)
        if failure is not None:
            return failure
        metadata: list[Metadata] = []
        names = None if files is None else {file.name for file in files}
        failure = self._on_all_ranks(lambda: metadata.append(read_metadata(candidate.path, names)))
        if failure is not None:
            return failure
        state = self._state_dict()
        untrained = _without_state(state["optimizer"], metadata[0])
        state["optimizer"] = {
            name: value for name, value in state["optimizer"].items() if _parameter_of(name) not in untrained
        }
        reader = CheckedReader(candidate.path, metadata[0])
        try:
            load(state, storage_reader=reader, planner=CheckedPlanner(), process_group=self._group)
        except _FAILURES as error:  # a corrupt file can raise any exception
            return TrainerError(str(_root_cause(error)))
        for module, optimizer in self._parts:
            own = get_optimizer_state_dict(module, optimizer, options=_FLAT)
            # Options such as weight decay are those of the flags; the learning rate is set in every step.
            options = {name: value for name, value in own.items() if not name.startswith(_STATE)}
            loaded = {
                name: state["optimizer"].get(self._saved(name), value)
                for name, value in own.items()
                if name.startswith(_STATE)
            }
            set_optimizer_state_dict(module, optimizer, {**options, **loaded}, options=_FLAT)
            for name, parameter in module.named_parameters():
                if self._tied.get(name, name) in untrained:
                    optimizer.state.pop(parameter, None)  # as it was when the checkpoint was saved
        self._set_model(state["model"])
        self.saver.restored(candidate.step)
        return None

    def _verify(self, candidate: CheckpointCandidate, files: tuple[FileDigest, ...] | None) -> TrainerError | None:
        """Each rank verifies a part of the files; with an unchanged world size, those that it wrote."""
        if files is None:
            self._record_event(
                "checkpoint_unverified",
                f"checkpoint {candidate.path} has no digests of its files; it is loaded without verification",
                candidate.step,
            )
            return None
        rank_files = files[dist.get_rank() :: dist.get_world_size()]
        return self._on_all_ranks(lambda: verify_files(candidate.path, rank_files))

    def _on_all_ranks(self, action: Callable[[], None]) -> TrainerError | None:
        """Run `action` on every rank; all return the failure of the lowest rank that failed."""
        failure: str | None = None
        try:
            action()
        except Exception as error:  # a damaged pickle can raise anything
            failure = _root_cause(error)
        failures: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure, group=self._group)
        first = next(((rank, text) for rank, text in enumerate(failures) if text is not None), None)
        return None if first is None else TrainerError(f"rank {first[0]}: {first[1]}")

    def _state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state of this rank's parts: `blocks.0.attention.qkv.weight` and, of each parameter,
        `state.NAME.exp_avg`."""
        optimizer_state: dict[str, Any] = {}
        for module, optimizer in self._parts:
            flat = get_optimizer_state_dict(module, optimizer, options=_FLAT)
            optimizer_state.update(
                {self._saved(name): value for name, value in flat.items() if name.startswith(_STATE)}
            )
        return {"model": self._model_state(), "optimizer": optimizer_state}

    def _model_state(self) -> dict[str, Any]:
        return {
            self._saved(name): without_float8(value)
            for module, _ in self._parts
            for name, value in get_model_state_dict(module).items()
        }

    def _saved(self, name: str) -> str:
        """The name of a parameter, or of its optimizer state, in checkpoints."""
        if not name.startswith(_STATE):
            return self._tied.get(name, name)
        parameter = _parameter_of(name)
        return f"{_STATE}{self._tied.get(parameter, parameter)}.{name.rpartition('.')[2]}"

    def _record_event(self, kind: str, message: str, step: int) -> None:
        if self._is_rank0:
            self._reporter.record_event(kind, message, step=step)


def _require_same_weights(
    path: Path,
    described: Mapping[str, object],
    metadata: Metadata,
    whole: nn.Module,
    architecture: dict[str, object] | None,
) -> None:
    """Raises InputError if a checkpoint is of another model than `whole`."""
    found = described.get("model")
    problems = describe_mismatch(found if isinstance(found, dict) else {}, architecture or {})
    saved = {
        name.removeprefix(_MODEL): tuple(getattr(stored, "size", ()))
        for name, stored in metadata.state_dict_metadata.items()
        if name.startswith(_MODEL)
    }
    expected = {name: tuple(tensor.shape) for name, tensor in unique_tensors(whole)}
    problems += [f"{name} is missing" for name in expected if name not in saved]
    problems += [f"{name} is not in the model" for name in saved if name not in expected]
    problems += [
        f"{name} has shape {saved[name]} instead of {shape}"
        for name, shape in expected.items()
        if saved.get(name, shape) != shape
    ]
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if problems[_SHOWN:] else ""
        raise InputError(f"--init_from: {path} is of another model: {'; '.join(problems[:_SHOWN])}{more}")


def _parameter_of(name: str) -> str:
    """`blocks.0.weight` of the flattened name `state.blocks.0.weight.exp_avg`."""
    return name.removeprefix(_STATE).rpartition(".")[0]


def _without_state(optimizer_state: Mapping[str, Any], metadata: Metadata) -> set[str]:
    """The parameters of which a checkpoint has no optimizer state at all: forward had not used them, so they had no
    gradient. For loading, torch creates the state of all parameters that require one."""
    saved = metadata.state_dict_metadata
    with_state = {_parameter_of(name) for name in optimizer_state if f"optimizer.{name}" in saved}
    return {_parameter_of(name) for name in optimizer_state} - with_state


def _root_cause(error: BaseException) -> str:
    """The first failure in a CheckpointException, which contains those of all ranks."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, wrapped = next(iter(sorted(failures.items())))
        inner = wrapped[0] if isinstance(wrapped, tuple) else wrapped
        return f"rank {rank}: {_root_cause(inner)}"
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
