"""`--model hf:NAME`: models of Transformers, unmodified, from a configuration or a local folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from muster_components.trainer.compilation.backends import Backend, compile_in_place
from muster_components.trainer.data.samples import Arrays, SampleSpec
from muster_components.trainer.data.tokenizer import SpecialTokens
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.huggingface_config import DEFAULT_IMAGE_SIZE, choose_task, read_config
from muster_components.trainer.models.huggingface_weights import (
    init_buffers_from_reference,
    init_from_reference,
    name_plan,
)
from muster_components.trainer.models.interface import Batch
from muster_components.trainer.models.module_tree import allocate, repeated_blocks
from muster_components.trainer.models.objectives import (
    LABELS,
    CorruptedSpans,
    ImageLabel,
    MaskedToken,
    NextToken,
    Objective,
    corrupted_spans,
    logits_loss,
)
from muster_components.trainer.models.safetensors_files import INDEX, WEIGHTS, SafetensorsFolder, load_weights
from muster_components.trainer.models.safetensors_save import MAX_FILE_BYTES, Gather, save_weights

_VOLATILE: Final = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Fields of a configuration that change nothing of names and shapes."""


class HuggingFaceModel:
    """A causal, masked or encoder-decoder language model, or an image classifier.

    The initial weights are those of the folder's safetensors files, or random ones by the rules of Transformers.
    """

    def __init__(
        self, source: str, overrides: dict[str, str], seq_len: int, special: SpecialTokens | None = None
    ) -> None:
        """`source`: a model type or a folder; `special`: of the tokenizer. A mask token or sentinels that it does not
        have are the last of the vocabulary. Raises InputError."""
        self.name = f"hf:{source}"
        self.config = read_config(source, overrides)
        self.task, self._class = choose_task(self.config)
        self.targets = frozenset({LABELS})
        self._seq_len = seq_len
        self._weights = _weights_folder(source)
        self.objective = self._objective(special or SpecialTokens())
        vocab_size = None if self._classifies else int(self.config.get_text_config().vocab_size)
        self.sample_spec = SampleSpec(self.objective.samples, self.objective.weight(seq_len), seq_len, vocab_size)

    @property
    def _classifies(self) -> bool:
        return isinstance(self.objective, ImageLabel)

    @property
    def summary(self) -> str:
        text = self.config.get_text_config()
        sizes = [
            f"{label} {getattr(text, field)}"
            for field, label in (
                ("num_hidden_layers", "layers"),
                ("hidden_size", "width"),
                ("vocab_size", "vocabulary"),
            )
            if getattr(text, field, None) is not None and not (field == "vocab_size" and self._classifies)
        ]
        weights = "random weights" if self._weights is None else f"weights of {self._weights}"
        return ", ".join([self._class.__name__, self.task, *sizes, weights])

    def build(self) -> nn.Module:
        """The model in float32, in training mode."""
        config = copy.deepcopy(self.config)
        if hasattr(config, "use_cache"):
            config.use_cache = False  # keys and values of earlier tokens are for generation
        return self._class._from_config(config, dtype=torch.float32).train()  # type: ignore[no-any-return]

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        return repeated_blocks(module)

    def compiled_modules(self, module: nn.Module) -> Sequence[nn.Module]:
        return repeated_blocks(module)

    def compile_whole(self, module: nn.Module, backend: Backend) -> None:
        """Each block: what Transformers does around them is Python that depends on the inputs."""
        for block in self.compiled_modules(module):
            compile_in_place(block, backend)

    def initialize(self, module: nn.Module, device: torch.device, seed: int) -> None:
        """Read the folder's weights, or set random ones; see `load_weights` for the errors."""
        allocate([module], device, recurse=True)
        with torch.device("meta"):
            reference: Any = self.build()
        if self._weights is None:
            init_from_reference(module, reference, self.blocks(reference), seed)
            return
        source = SafetensorsFolder(self._weights)
        load_weights(module, source, plan=name_plan(reference, source), whole=reference)
        init_buffers_from_reference(module, reference)

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        return self.objective.collate(samples, number_B, seed)

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The cross-entropy of the logits; the model's own loss is a mean over the micro-batch with its padding."""
        return logits_loss(output.logits, batch[LABELS])

    def flops_per_sample(self) -> int | None:
        """6 FLOPs for each parameter and token, plus 12 x layers x width x tokens^2 for attention (PaLM, appendix B).

        Embeddings that are only looked up do not count. None where a mixture of experts uses a part of its parameters.
        Encoder and decoder see sequences of other lengths, and networks of convolutions have no such layers: for them,
        what the matrix products and convolutions of one forward compute, three times.
        """
        text = self.config.get_text_config()
        if any(getattr(text, field, None) for field in ("num_experts", "num_local_experts", "n_routed_experts")):
            return None
        with torch.device("meta"):
            module: Any = self.build()
        sizes = (getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None))
        if isinstance(self.objective, CorruptedSpans) or None in sizes:
            return 3 * self._forward_flops(module)
        lookups = {id(child.weight) for child in module.modules() if isinstance(child, nn.Embedding)}
        head = module.get_output_embeddings()
        if head is not None:
            lookups.discard(id(head.weight))
        multiplied = sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in lookups)
        tokens = self._tokens_per_sample()
        return int(6 * multiplied * tokens + 12 * text.num_hidden_layers * text.hidden_size * tokens**2)

    def architecture(self) -> dict[str, object]:
        values = json.loads(self.config.to_json_string(use_diff=False))
        return {"class": self._class.__name__, **{k: v for k, v in values.items() if k not in _VOLATILE}}

    def save(
        self, module: nn.Module, folder: Path, *, gather: Gather | None = None, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Save `module`, sharded or not, so that `from_pretrained` opens it. Every rank calls it.

        `gather`: as in `save_weights`, for the stages of a pipeline. Raises TrainerError if rank 0 cannot write.
        """
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, revert_weight_conversion

        with torch.device("meta"):
            reference: Any = self.build()
        converts = any(
            isinstance(entry, WeightConverter) for entry in get_model_conversion_mapping(reference, add_legacy=False)
        )

        def write_config(target: Path) -> None:
            config = copy.deepcopy(self.config)
            config.architectures, config.dtype = [self._class.__name__], "float32"
            config.save_pretrained(target)
            if reference.can_generate():
                reference.generation_config.save_pretrained(target)

        save_weights(
            module,
            folder,
            gather=gather,
            rename=lambda tensors: revert_weight_conversion(reference, tensors),
            groups=self.blocks(module) if converts else (),
            write_config=write_config,
            max_file_bytes=max_file_bytes,
        )

    def _objective(self, special: SpecialTokens) -> Objective:
        config = self.config
        if self.task == "image classification":
            size, channels = getattr(config, "image_size", DEFAULT_IMAGE_SIZE), getattr(config, "num_channels", 3)
            height, width = (size, size) if isinstance(size, int) else size
            return ImageLabel(config.num_labels, (channels, height, width))
        text = config.get_text_config()
        padding = getattr(text, "pad_token_id", None)
        if padding is not None and padding >= text.vocab_size:
            raise InputError(
                f"--model_args: pad_token_id must be less than vocab_size, {text.vocab_size}; got {padding}; "
                "add pad_token_id=0, or give the vocabulary of the tokenizer"
            )
        positions = getattr(text, "max_position_embeddings", None)
        if positions is not None and self._seq_len > positions:
            raise InputError(
                f"--seq_len must be at most {positions}, the positions of {self.name}; got {self._seq_len}; "
                f"--model_args max_position_embeddings={self._seq_len} makes a model with more"
            )
        if self.task == "causal language model":
            return NextToken()
        if self.task == "masked language model":
            return MaskedToken(text.vocab_size - 1 if special.mask is None else special.mask, text.vocab_size)
        return self._span_objective(special.sentinels or tuple(reversed(range(text.vocab_size))))

    def _span_objective(self, sentinels: tuple[int, ...]) -> CorruptedSpans:
        spans = corrupted_spans(self._seq_len)
        if spans > len(sentinels):
            raise InputError(
                f"--seq_len {self._seq_len} makes {spans} corrupted spans, but there are only {len(sentinels)} sentinel"
                " tokens (<extra_id_0>, ...); use a lower --seq_len"
            )
        config = self.config
        tokens = (getattr(config, name, None) for name in ("decoder_start_token_id", "pad_token_id", "bos_token_id"))
        start = next((token for token in tokens if token is not None), 0)
        end = config.eos_token_id
        return CorruptedSpans(sentinels[:spans], start, end if isinstance(end, int) else None)

    def _forward_flops(self, module: nn.Module) -> int:
        """Of one sample; `module`: on the meta device."""
        if isinstance(self.objective, ImageLabel):
            inputs = {"pixel_values": torch.empty(1, *self.objective.image_shape, device="meta")}
        else:
            tokens = {"tokens": np.zeros((1, self._seq_len), dtype=np.int64)}
            batch = self.collate(tokens, np.zeros(1, dtype=np.int64), 0)
            inputs = {name: torch.from_numpy(array).to("meta") for name, array in batch.items() if name != LABELS}
        with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.device("meta"):
            module(**inputs)
        return int(counter.get_total_flops())

    def _tokens_per_sample(self) -> int:
        if isinstance(self.objective, ImageLabel):
            patch = getattr(self.config, "patch_size", None)
            if isinstance(patch, int):
                _, height, width = self.objective.image_shape
                return (height // patch) * (width // patch) + 1
            return 1
        return self._seq_len


def _weights_folder(source: str) -> Path | None:
    """The folder `source` if it has safetensors files; None without weights, which are initialized then.

    Raises InputError for a folder that has weights in other files only: training would start from random ones.
    """
    folder = Path(source).expanduser()
    if any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        return folder
    if other := next((path for pattern in _OTHER_WEIGHTS for path in sorted(folder.glob(pattern))), None):
        raise InputError(
            f"--model hf:{source}: {other.name} is not a safetensors file, and would not be loaded; convert it:"
            " AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) or as its task needs"
        )
    return None


_OTHER_WEIGHTS = ("pytorch_model*.bin*", "tf_model*.h5", "flax_model*.msgpack")
