"""The TorchX run options (`-cfg`) of the schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.specs import CfgVal, InvalidRunConfigException, runopts
from torchx.util.types import to_dict

from muster.text.suggest import did_you_mean
from muster.torchx.settings import SETTINGS


class StrictRunOptions(runopts):  # type: ignore[misc]  # TorchX is not typed
    """Refuses unknown options, which TorchX 0.7.0 drops silently.

    TorchX prints errors of `resolve`, but errors of `cfg_from_str` end in a traceback. So `cfg_from_str` keeps invalid
    options and `resolve` refuses them.
    """

    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self._scheduler = scheduler

    def cfg_from_str(self, cfg_str: str) -> dict[str, CfgVal]:
        """The options of a `-cfg` text; values that cannot be parsed remain strings."""
        given: dict[str, CfgVal] = to_dict(cfg_str)
        if any(self.get(key) is None for key in given):
            return given
        try:
            read: dict[str, CfgVal] = super().cfg_from_str(cfg_str)
        except ValueError:
            return given
        return read

    def resolve(self, cfg: Mapping[str, CfgVal], **how: Any) -> dict[str, CfgVal]:
        """The options with defaults. Raises InvalidRunConfigException for an unknown option."""
        names = [name for name, _ in self]
        for key in cfg:
            if self.get(key) is None:
                hint = did_you_mean(key, names, f"valid options: {', '.join(names)}")
                raise InvalidRunConfigException(f"`{key}` is not an option of {self._scheduler}; {hint}", key, cfg)
        resolved: dict[str, CfgVal] = super().resolve(cfg, **how)
        return resolved


def run_options(scheduler: str) -> StrictRunOptions:
    """All options of a scheduler, from the one table of settings."""
    options = StrictRunOptions(scheduler)
    for setting in SETTINGS:
        if setting.option_type is None or (setting.backend is not None and setting.backend != scheduler):
            continue
        options.add(setting.key, type_=setting.option_type, default=None, help=setting.help)
    return options
