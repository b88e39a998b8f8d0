"""Environment variables by name: which of them hold secrets, and how an object is shown without the values of those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.errors import InvalidSpec

REDACTED = "(hidden)"
"""What is shown in the place of a secret."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|BEARER_TOKEN|CONNECTION_STRING"
    r"|(?:^|_)(?:TOKEN|KEY|APIKEY|PASS|PAT|AUTH|JWT)$|_PWD$",
    re.IGNORECASE,
)
_CLOUD_IDENTITIES = frozenset((
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_CONFIG_FILE", "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_STORAGE_ACCOUNT", "OCI_CONFIG_FILE",
    "OCI_CONFIG_PROFILE",
))  # fmt: skip
"""Variables without a secret that tell the client of a cloud which credentials to use."""
_MAX_NAMED = 3
_URL_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret: WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY, DB_PASSWORD."""
    return _SECRET_NAME.search(name) is not None


def is_valid_name(text: str) -> bool:
    """Whether a variable can be called so."""
    return _VARIABLE_NAME.fullmatch(text) is not None


def is_credential(name: str) -> bool:
    """Whether a variable of this name holds a secret, or tells a cloud's client which credentials to use."""
    return is_secret_name(name) or name in _CLOUD_IDENTITIES


@dataclass(frozen=True, slots=True)
class OmittedVariables:
    """Variables of the submitter's environment that a job does not get; the file `listed_in` names all of them."""

    names: tuple[str, ...]
    listed_in: str

    def message(self, option: str) -> str:
        """One line with their number and, credentials first, some of their names, without values. `option`, such as
        `--env `, before a name passes the variable."""
        credentials = [name for name in self.names if is_credential(name)]
        ordered = [*credentials, *(name for name in self.names if name not in credentials)]
        count = "1 variable" if len(ordered) == 1 else f"{len(ordered)} variables"
        more = "" if len(ordered) <= _MAX_NAMED else ", ..."
        found = f"{count} of your environment not passed to the job: {', '.join(ordered[:_MAX_NAMED])}{more}"
        listed = f"; all names: {self.listed_in}" if more else ""
        return f"{found}; to pass one: {option}{ordered[0]}{listed}"


def redact(name: str, value: str) -> str:
    """The value as it may be printed: nothing of a secret, and a URL without its user and password."""
    return REDACTED if is_secret_name(name) else _URL_USERINFO.sub(f"{REDACTED}@", value)


def is_redacted(value: str) -> bool:
    """Whether this is what was shown in the place of a value."""
    return value == REDACTED or f"://{REDACTED}@" in value


def redact_secrets(document: Mapping[str, Any]) -> dict[str, Any]:
    """A TrainingJob as JSON values, whatever its form, with the secrets in `env` of its templates hidden."""
    return {key: _redact_value(value) for key, value in document.items()}


def _redact_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_redact_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _redact_value(item) for key, item in value.items()}
    if isinstance(found.get("env"), list):
        found["env"] = [_redact_variable(entry) for entry in found["env"]]
    return found


def _redact_variable(entry: Any) -> Any:
    if not (isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("value"), str)):
        return entry
    return entry | {"value": redact(entry["name"], entry["value"])}


def parse_env_options(given: Sequence[str], option: str) -> tuple[list[str], dict[str, str]]:
    """`NAME` and `NAME=VALUE` as (names whose values are in the environment, values by name).

    Raises `InvalidSpec` for an invalid name, and for a secret with its value: command lines can be read by others.
    """
    names, values = [], {}
    for text in given:
        name, has_value, value = text.partition("=")
        if not is_valid_name(name):
            raise InvalidSpec(f"{option}: must be NAME or NAME=VALUE; got the name {name!r}", field=option)
        if has_value and is_secret_name(name):
            message = (
                f"{option}: {name} holds a secret, and command lines can be read by others; set it in your environment"
            )
            raise InvalidSpec(f"{message} and write {option} {name}", field=option)
        if has_value:
            values[name] = value
        else:
            names.append(name)
    return names, values
