"""A bucket's own settings: versions, replication, lifecycle. Read whole, written whole, as S3 has it.

An error names the right that is missing, because people who write to a bucket are seldom those who may change it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from botocore.exceptions import ClientError

from lakeops.model.errors import StoreError, Unsupported
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client, code_of, status_of, translated
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
    """Create the job with an ``s3control`` client. Returns its id. Raises ``StoreError``."""
    from botocore.exceptions import BotoCoreError, ClientError

    from lakeops.store.s3.client import code_of

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


Setting = Literal["versioning", "lifecycle", "replication"]

_ABSENT = frozenset(
    {
        "ReplicationConfigurationNotFoundError",
        "NoSuchLifecycleConfiguration",
        "ServerSideEncryptionConfigurationNotFoundError",
    }
)
_RIGHTS: dict[Setting, tuple[str, str]] = {
    "versioning": ("s3:GetBucketVersioning", "s3:PutBucketVersioning"),
    "lifecycle": ("s3:GetLifecycleConfiguration", "s3:PutLifecycleConfiguration"),
    "replication": ("s3:GetReplicationConfiguration", "s3:PutReplicationConfiguration and iam:PassRole for its role"),
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket, through boto3.

    Args:
        name: the bucket.
        settings: endpoint and region. Credentials come from boto3's chain.
    """

    name: str
    settings: StoreSettings

    @property
    def region(self) -> str:
        """Where the bucket lives."""
        with self._allowed("looking up its region", "s3:GetBucketLocation"):
            return region_of(self._client, self.name)

    def read(self, setting: Setting) -> Document | None:
        """The setting's document, None when the bucket has none. Raises ``StoreError``."""
        ask: dict[Setting, Callable[[], Any]] = {
            "versioning": lambda: self._client.get_bucket_versioning(Bucket=self.name),
            "lifecycle": lambda: self._client.get_bucket_lifecycle_configuration(Bucket=self.name),
            "replication": lambda: self._client.get_bucket_replication(Bucket=self.name)["ReplicationConfiguration"],
        }
        with self._allowed(f"reading its {setting}", _RIGHTS[setting][0]):
            try:
                answer = cast("Document", ask[setting]())
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    return None
                raise
        return {key: value for key, value in answer.items() if key != "ResponseMetadata"} or None

    def clear_replication(self) -> None:
        """Remove all replication rules. Raises ``StoreError``."""
        with self._allowed("removing its replication", _RIGHTS["replication"][1]):
            self._client.delete_bucket_replication(Bucket=self.name)

    def write(self, setting: Setting, document: Document) -> None:
        """Replace the setting's document. Raises ``StoreError``."""
        with self._allowed(f"writing its {setting}", _RIGHTS[setting][1]):
            match setting:
                case "versioning":
                    self._client.put_bucket_versioning(
                        Bucket=self.name,
                        VersioningConfiguration={"Status": document["Status"]},
                    )
                case "lifecycle":
                    # Given back as it was found, or S3 would fall back to its default.
                    size = {key: value for key, value in document.items() if key != "Rules"}
                    self._client.put_bucket_lifecycle_configuration(
                        Bucket=self.name, LifecycleConfiguration={"Rules": document["Rules"]}, **size
                    )
                case "replication":
                    self._client.put_bucket_replication(
                        Bucket=self.name, ReplicationConfiguration=cast("Any", document)
                    )

    def encrypts_with_kms(self) -> bool:
        """Whether new objects are encrypted with KMS by default. False too where nobody may ask."""
        try:
            answer = self._client.get_bucket_encryption(Bucket=self.name)
        except ClientError:
            return False
        rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
        algorithms = (rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "") for rule in rules)
        return any(name.startswith("aws:kms") for name in algorithms)

    @property
    def _client(self) -> S3Client:
        return client(self.settings)

    @contextmanager
    def _allowed(self, doing: str, right: str) -> Iterator[None]:
        with translated(self.name, f"s3://{self.name}"):
            try:
                yield
            except ClientError as error:
                if status_of(error) in {405, 501}:
                    raise Unsupported(
                        f"bucket {self.name!r}: {doing} is nothing that its server knows ({code_of(error)}): it cannot "
                        "replicate by itself; 'lakeops mirror replicate' copies"
                    ) from None
                if status_of(error) == 403 and code_of(error) in {"AccessDenied", "403", "Forbidden"}:
                    raise StoreError(
                        f"bucket {self.name!r}: {doing} is denied ({code_of(error)}); these credentials need {right}"
                    ) from None
                raise
