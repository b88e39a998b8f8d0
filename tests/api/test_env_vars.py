"""Which variables hold secrets, and that their values are not shown."""

from __future__ import annotations

import json

import pytest
from tests.manifests.objects import job

from muster.api.env_vars import (
    REDACTED,
    OmittedVariables,
    is_credential,
    is_secret_name,
    parse_env_options,
    redact,
    redact_secrets,
)
from muster.api.yaml_input import load_objects
from muster.errors import InvalidSpec


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("WANDB_API_KEY", True), ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("CLIENT_SECRET", True),
        ("DB_PASSWORD", True), ("PGPASSWORD", True), ("TOKEN", True), ("hf_token", True), ("OPENAI_APIKEY", True),
        ("AWS_BEARER_TOKEN_BEDROCK", True), ("MYSQL_PWD", True), ("REDISCLI_AUTH", True), ("CI_JOB_JWT", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True), ("PWD", False), ("AUTHOR", False), ("MAX_TOKEN_LENGTH", False),
        ("TOKENIZERS_PARALLELISM", False), ("HF_HOME", False), ("KEYBOARD", False), ("PATH", False),
    ],
)  # fmt: skip
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_variables_that_a_job_does_not_get_are_counted_in_one_line_with_credentials_first() -> None:
    names = tuple(f"VARIABLE_{number}" for number in range(30))
    message = OmittedVariables((*names, "AWS_PROFILE", "DB_PASSWORD"), "/home/omitted").message("-cfg env=")
    assert message.startswith("32 variables of your environment")
    assert "AWS_PROFILE, DB_PASSWORD, VARIABLE_0, ...; to pass one: -cfg env=AWS_PROFILE" in message
    assert message.endswith("all names: /home/omitted")
    assert len(message) < 200
    few = OmittedVariables(("MY_OWN",), "/home/omitted").message("--env ")
    assert few == "1 variable of your environment not passed to the job: MY_OWN; to pass one: --env MY_OWN"


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "AWS_REGION", "AZURE_CONFIG_DIR", "S3_BUCKET", "GCP_PROJECT"])
def test_settings_of_a_cloud_that_select_no_credentials_are_no_credentials(name: str) -> None:
    assert not is_credential(name)
    assert is_credential("AWS_PROFILE")
    assert is_credential("GOOGLE_APPLICATION_CREDENTIALS")


def test_a_url_is_shown_without_its_user_and_password() -> None:
    assert redact("https_proxy", "http://me:word@proxy:3128/x@y") == f"http://{REDACTED}@proxy:3128/x@y"
    assert redact("URL", "http://proxy:3128/x@y") == "http://proxy:3128/x@y"
    assert redact("NAME", "value") == "value"


def test_an_object_is_shown_without_the_secrets_of_its_templates_whatever_its_form() -> None:
    env = [{"name": "HF_TOKEN", "value": "t"}, {"name": "A", "value": "b"}, {"name": "X_KEY", "valueFrom": {}}, 3]
    document = {"spec": {"roles": [{"template": {"spec": {"containers": [{"env": env}], "initContainers": None}}}]}}
    shown_env = redact_secrets(document)["spec"]["roles"][0]["template"]["spec"]["containers"][0]["env"]
    assert shown_env == [{"name": "HF_TOKEN", "value": REDACTED}, *env[1:]]
    assert env[0] == {"name": "HF_TOKEN", "value": "t"}


def test_variables_are_given_by_name_or_with_a_value() -> None:
    assert parse_env_options(["HF_HOME", "A=b=c", "EMPTY="], "--env") == (["HF_HOME"], {"A": "b=c", "EMPTY": ""})


@pytest.mark.parametrize("text", ["HF_TOKEN=do-not-tell", "=do-not-tell", "a b=do-not-tell", "1A"])
def test_no_name_and_secrets_with_their_values_are_refused_without_showing_those(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_env_options([text], "--env")
    assert refused.value.field == "--env"
    assert "do-not-tell" not in str(refused.value)


@pytest.mark.parametrize("value", [REDACTED, f"http://{REDACTED}@proxy:3128"])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_job_whose_secrets_were_hidden_when_it_was_printed_cannot_be_submitted(kind: str, value: str) -> None:
    document = job()
    pod = document["spec"]["roles"][0]["template"]["spec"]
    pod.setdefault(kind, [{"name": "first", "image": "i"}])[0]["env"] = [
        {"name": "PLAIN", "value": "see (hidden) files"},
        {"name": "HF_TOKEN", "value": value},
    ]
    with pytest.raises(InvalidSpec) as refusal:
        load_objects(json.dumps(document))
    assert refusal.value.field == f"spec.roles[0].template.spec.{kind}[0].env[1].value"
