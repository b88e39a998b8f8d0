"""`hf:` models: their configuration from a name or a local folder, and what they are trained to do."""

from __future__ import annotations

import copy
import difflib
import re
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.errors import InputError, install_extra
from muster_components.trainer.models.selection import override_value

TASKS: Final = {
    "image classification": "AutoModelForImageClassification",
    "masked language model": "AutoModelForMaskedLM",
    "causal language model": "AutoModelForCausalLM",
    "encoder-decoder language model": "AutoModelForSeq2SeqLM",
}
"""Each task's class of Transformers. A model type that has several is trained for the first."""

DEFAULT_IMAGE_SIZE: Final = 224
"""Pixels of each side, where the configuration has no `image_size`: networks of convolutions take all sizes."""


def read_config(name: str, overrides: dict[str, str]) -> Any:
    """The configuration of the model type `name` (such as `llama`), or of the folder `name`, with `overrides`.

    Nothing is downloaded and no code of the folder runs. Raises InputError for an unknown type or key.
    """
    try:
        from transformers import CONFIG_MAPPING, AutoConfig
    except ImportError as error:
        raise InputError(f"--model hf:{name} needs Transformers; {install_extra('hf')} ({error})") from error
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            known = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            _refuse_kernels(known)
            values = parse_overrides(overrides, known)
            return type(known).from_dict(known.to_dict() | values) if values else known
        if name in CONFIG_MAPPING:
            return CONFIG_MAPPING[name](**parse_overrides(overrides, CONFIG_MAPPING[name]()))
    except InputError:
        raise
    except (
        Exception
    ) as error:  # the classes of configurations raise many: of the library, ZeroDivisionError for 0 heads
        raise InputError(f"--model hf:{name}: {type(error).__name__}: {error}") from error
    near = difflib.get_close_matches(name, list(CONFIG_MAPPING), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(
        f"--model hf:{name} is neither a local folder nor a model type of Transformers{hint} "
        "Model types are the values of model_type in config.json, such as llama, qwen3, bert or vit"
    )


def parse_overrides(overrides: dict[str, str], known: Any) -> dict[str, Any]:
    """Values for fields of the configuration `known`; for image classifiers `image_size` is one in any case.

    Raises InputError for an unknown field or another type.
    """
    if not hasattr(known, "image_size") and _classifies_images(known):
        known = copy.copy(known)
        known.image_size = DEFAULT_IMAGE_SIZE
    fields = known.to_dict()
    values = {}
    for key, text in overrides.items():
        if not hasattr(known, key) or key.startswith("_") or callable(getattr(known, key)):
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"--model_args: {key!r} is not in the configuration of {known.model_type}; {hint}"
                f"Fields: {', '.join(sorted(field for field in fields if not field.startswith('_')))}"
            )
        values[known.attribute_map.get(key, key)] = override_value(key, text, getattr(known, key))
    return values


def _classifies_images(config: Any) -> bool:
    import transformers

    return type(config) in transformers.AutoModelForImageClassification._model_mapping


def choose_task(config: Any) -> tuple[str, Any]:
    """The task and the class of Transformers for a configuration: by its architecture, else by its model type.

    Raises InputError if the model has none of TASKS.
    """
    import transformers

    found: dict[str, tuple[Any, ...]] = {}
    for task, auto in TASKS.items():
        mapping = getattr(transformers, auto)._model_mapping
        speech = task == "encoder-decoder language model" and not config.is_encoder_decoder
        if type(config) in mapping and not speech:
            classes = mapping[type(config)]
            found[task] = classes if isinstance(classes, tuple) else (classes,)  # DeiT has two, the usual one first
    for architecture in config.architectures or ():
        for task, classes in found.items():
            if (named := next((one for one in classes if one.__name__ == architecture), None)) is not None:
                return task, named
    for task, classes in found.items():
        return task, classes[0]
    raise InputError(
        f"--model: {config.model_type} has no {', '.join(TASKS)} in Transformers; "
        "give a function that returns the model: --model my.module:factory"
    )


def _refuse_kernels(config: Any) -> None:
    """Raises InputError if the file names kernels that are not installed, which Transformers would download and run."""
    from transformers import PreTrainedConfig, utils

    implementation = config._attn_implementation
    if isinstance(implementation, str) and "/" in implementation:
        raise InputError(
            f"--model: attn_implementation in config.json must be one of Transformers, such as sdpa; "
            f"got {implementation!r}"
        )
    match = re.fullmatch(r"(?:paged\|)?flash_attention_(\d+)", str(implementation))
    if match and not getattr(utils, f"is_flash_attn_{match[1]}_available", lambda: False)():
        raise InputError(
            f"--model: attn_implementation in config.json is {implementation!r}, whose package is not installed, and "
            "nothing is downloaded; install FlashAttention, or use sdpa"
        )
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            _refuse_kernels(part)
