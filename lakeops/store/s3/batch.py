"""Replicating what was there before the rule: an S3 Batch Replication job over everything below the prefix.

Replication rules concern new objects alone. The job has S3 find out by itself what was not replicated yet, so it can
be created again after a while without copying anything twice.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import StoreError
from lakeops.store.s3.rules import Document, Replication, account_of, bucket_arn

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def batch_job(wish: Replication, role: str, token: str) -> Document:
    """The parameters of ``create_job``.

    Args:
        wish: what is replicated.
        role: the ARN of the role that the job runs as.
        token: names the request, so that one which is sent again does not create a second job.
    """
    found: Document = {"EligibleForReplication": True, "ObjectReplicationStatuses": ["NONE", "FAILED"]}
    if wish.prefix:
        found["KeyNameConstraint"] = {"MatchAnyPrefix": [wish.prefix]}
    return {
        "AccountId": account_of(role),
        "ConfirmationRequired": False,
        "Operation": {"S3ReplicateObject": {}},
        "Report": {"Enabled": False},
        "ClientRequestToken": hashlib.sha256(token.encode()).hexdigest()[:40],
        "Description": f"lakeops: {wish.source}/{wish.prefix} to {wish.destination}"[:256],
        "Priority": 1,
        "RoleArn": role,
        "ManifestGenerator": {
            "S3JobManifestGenerator": {
                "SourceBucket": bucket_arn(wish.source, role),
                "Filter": found,
                "EnableManifestOutput": False,
            }
        },
    }


def batch_command(job: Document, region: str) -> str:
    """The AWS command line that creates the job, ready for a shell."""
    words = ["aws", "s3control", "create-job", "--region", region, "--account-id", job["AccountId"]]
    words += ["--no-confirmation-required"]
    for option, value in (
        ("operation", job["Operation"]),
        ("report", job["Report"]),
        ("manifest-generator", job["ManifestGenerator"]),
    ):
        words += [f"--{option}", json.dumps(value, separators=(",", ":"))]
    words += ["--priority", str(job["Priority"]), "--role-arn", job["RoleArn"]]
    words += ["--client-request-token", job["ClientRequestToken"], "--description", job["Description"]]
    return shlex.join(words)


def start_job(control: Any, job: Document) -> str:  # noqa: ANN401 - boto3 makes the class while it runs
    """Create the job with an ``s3control`` client; returns its id. Raises ``StoreError``."""
    from botocore.exceptions import BotoCoreError, ClientError

    from lakeops.store.s3.failures import code_of

    try:
        return str(control.create_job(**job)["JobId"])
    except ClientError as error:
        raise StoreError(
            f"S3 refuses the batch replication job ({code_of(error)}): it needs s3:CreateJob, and iam:PassRole for the "
            "role that it runs as"
        ) from None
    except BotoCoreError as error:
        raise StoreError(f"the batch replication job could not be created ({type(error).__name__})") from None


def control_client(region: str) -> Any:  # noqa: ANN401 - boto3 makes the class while it runs
    """A client of S3's control plane, in the region of the source bucket."""
    import boto3

    return boto3.session.Session().client("s3control", region_name=region)


def region_of(client: S3Client, bucket: str) -> str:
    """The region that a bucket is in."""
    found: str | None = client.get_bucket_location(Bucket=bucket).get("LocationConstraint")  # None: the first region
    return found or "us-east-1"
