"""A key for one prefix of a bucket, as docs/operations/security.md wants one per namespace, is enough for traces."""

from __future__ import annotations

import io
import json
import urllib.request
from typing import Any

import boto3  # type: ignore[import-untyped]  # comes with moto, the S3 server
import pytest
from tests.tracing import s3

from muster.tracing.runs.run_store import TraceStore

pytestmark = pytest.mark.slow


def key(endpoint: str, *allowed: tuple[tuple[str, ...], str]) -> dict[str, Any]:
    """Options of a store with a new user's key, who may do these actions to these resources and nothing else."""
    iam = boto3.client(
        "iam",
        endpoint_url=endpoint,
        aws_access_key_id=s3.CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=s3.CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    name = f"user-{len(iam.list_users()['Users'])}"
    iam.create_user(UserName=name)
    statements = [
        {"Effect": "Allow", "Action": list(actions), "Resource": f"arn:aws:s3:::{resource}"}
        for actions, resource in allowed
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=name, PolicyName="traces", PolicyDocument=policy)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    where = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    return {"key": made["AccessKeyId"], "secret": made["SecretAccessKey"], "client_kwargs": where}


def test_credentials_of_a_namespace_are_limited_to_its_prefix() -> None:
    with s3.serving() as environment:
        endpoint = environment["AWS_ENDPOINT_URL_S3"]
        objects = (("s3:PutObject", "s3:GetObject"), f"{s3.BUCKET}/muster/team-a/*")
        collector = key(endpoint, objects)
        reader = key(endpoint, objects, (("s3:ListBucket",), s3.BUCKET))
        guard = urllib.request.Request(
            f"{endpoint}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(guard, timeout=60) as answer:  # from here on the server asks who may
            assert answer.status == 200

        mine, other = (f"s3://{s3.BUCKET}/muster/{team}/uid" for team in ("team-a", "team-b"))
        TraceStore(mine, skip_instance_cache=True, **collector).put_bytes("traces/rank0.json.gz", b"trace")
        with pytest.raises(PermissionError):
            TraceStore(other, skip_instance_cache=True, **collector).put_bytes("traces/rank0.json.gz", b"trace")
        large = b"x" * (20 << 20)  # more than is sent at once
        TraceStore(mine, skip_instance_cache=True, **collector).put_file(io.BytesIO(large), "traces/rank1.json.gz")
        there = TraceStore(mine, skip_instance_cache=True, **reader)
        assert there.sizes() == {"traces/rank0.json.gz": 5, "traces/rank1.json.gz": len(large)}
        with there.open("traces/rank0.json.gz") as trace:
            assert trace.read() == b"trace"
