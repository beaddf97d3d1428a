"""A bucket's own settings: versions, replication, lifecycle. Read whole, written whole, as S3 has it.

An error names the right that is missing, because people who write to a bucket are seldom those who may change it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from botocore.exceptions import BotoCoreError, ClientError

from lakeops.model.errors import InvalidInput, PreconditionFailed, StoreError, unsupported
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client, code_of, status_of, translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Document = dict[str, Any]


def batch_job(wish: Replication, role: str, token: str) -> Document:
    """The parameters of ``create_job``, for a job that runs as a role, given by its ARN.

    ``token`` names the request, so that one which is sent again does not create a second job.
    """
    found: Document = {"EligibleForReplication": True, "ObjectReplicationStatuses": ["NONE", "FAILED"]}
    if wish.prefix:
        found["KeyNameConstraint"] = {"MatchAnyPrefix": [wish.prefix]}
    manifest = {"SourceBucket": bucket_arn(wish.source, role), "Filter": found, "EnableManifestOutput": False}
    return {
        "AccountId": account_of(role),
        "ConfirmationRequired": False,
        "Operation": {"S3ReplicateObject": {}},
        "Report": {"Enabled": False},
        "ClientRequestToken": hashlib.sha256(token.encode()).hexdigest()[:40],
        "Description": f"lakeops: {wish.source}/{wish.prefix} to {wish.destination}"[:256],
        "Priority": 1,
        "RoleArn": role,
        "ManifestGenerator": {"S3JobManifestGenerator": manifest},
    }


def batch_command(job: Document, region: str) -> str:
    """The AWS command line that creates the job, ready for a shell."""
    words = ["aws", "s3control", "create-job", "--region", region, "--account-id", job["AccountId"]]
    words += ["--no-confirmation-required"]
    for option, name in (("operation", "Operation"), ("report", "Report"), ("manifest-generator", "ManifestGenerator")):
        words += [f"--{option}", json.dumps(job[name], separators=(",", ":"))]
    words += ["--priority", str(job["Priority"]), "--role-arn", job["RoleArn"]]
    words += ["--client-request-token", job["ClientRequestToken"], "--description", job["Description"]]
    return shlex.join(words)


def start_job(control: Any, job: Document) -> str:  # noqa: ANN401 - boto3 makes the class while it runs
    """Create the job with an ``s3control`` client. Returns its id. Raises ``StoreError``."""
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


Setting = Literal["versioning", "lifecycle", "replication"]

_ABSENT = {
    "ReplicationConfigurationNotFoundError",
    "NoSuchLifecycleConfiguration",
    "ServerSideEncryptionConfigurationNotFoundError",
}
_RIGHTS: dict[Setting, tuple[str, str]] = {
    "versioning": ("s3:GetBucketVersioning", "s3:PutBucketVersioning"),
    "lifecycle": ("s3:GetLifecycleConfiguration", "s3:PutLifecycleConfiguration"),
    "replication": ("s3:GetReplicationConfiguration", "s3:PutReplicationConfiguration and iam:PassRole for its role"),
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket, through boto3. Credentials come from its chain."""

    name: str
    settings: StoreSettings

    @property
    def region(self) -> str:
        """The region that the bucket is in."""
        with self._allowed("looking up its region", "s3:GetBucketLocation"):
            found: str | None = self._client.get_bucket_location(Bucket=self.name).get("LocationConstraint")
        return found or "us-east-1"  # None: the first region

    def read(self, setting: Setting) -> Document | None:
        """The setting's document, None when the bucket has none. Raises ``StoreError``."""
        ask: dict[Setting, Any] = {
            "versioning": self._client.get_bucket_versioning,
            "lifecycle": self._client.get_bucket_lifecycle_configuration,
            "replication": self._client.get_bucket_replication,
        }
        with self._allowed(f"reading its {setting}", _RIGHTS[setting][0]):
            try:
                answer: Document = ask[setting](Bucket=self.name)
            except ClientError as error:
                if code_of(error) in _ABSENT:
                    return None
                raise
        answer = answer.get("ReplicationConfiguration", answer)
        return {key: value for key, value in answer.items() if key != "ResponseMetadata"} or None

    def write(self, setting: Setting, document: Document | None) -> None:
        """Replace the setting's document. None removes a replication. Raises ``StoreError``."""
        to: Any = self._client
        with self._allowed(f"writing its {setting}", _RIGHTS[setting][1]):
            if document is None:
                to.delete_bucket_replication(Bucket=self.name)
            elif setting == "versioning":
                to.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": document["Status"]})
            elif setting == "lifecycle":
                # S3 resets each part of the document that a request leaves out, so the other parts go back unchanged.
                beside = {key: value for key, value in document.items() if key != "Rules"}
                rules = {"Rules": document["Rules"]}
                to.put_bucket_lifecycle_configuration(Bucket=self.name, LifecycleConfiguration=rules, **beside)
            else:
                to.put_bucket_replication(Bucket=self.name, ReplicationConfiguration=document)

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
                    raise unsupported(
                        f"bucket {self.name!r}: {doing} is nothing that its server knows ({code_of(error)}): it cannot "
                        "replicate by itself; 'lakeops mirror replicate' copies"
                    ) from None
                if status_of(error) == 403 and code_of(error) in {"AccessDenied", "403", "Forbidden"}:
                    raise StoreError(
                        f"bucket {self.name!r}: {doing} is denied ({code_of(error)}); these credentials need {right}"
                    ) from None
                raise


_ROLE = re.compile(r"arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{12}):role/[\w+=,.@/-]+")
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_ABORT_DAYS = 7
"""Days after which the parts of an upload that nobody finished go."""


@dataclass(frozen=True, slots=True)
class Replication:
    """A wish for replication.

    Attributes:
        source: the bucket that is written to.
        destination: the bucket that follows.
        prefix: what the names of the objects start with, in both. Ends in a slash, or empty for the whole bucket.
        role: the ARN of the IAM role that S3 replicates as. Empty to keep the one that the bucket has.
        noncurrent_days: how long deleted or replaced objects are kept as versions, in both buckets.
        replica_key: the ARN of a KMS key for the replicas. Without one, objects encrypted with KMS are not replicated.
    """

    source: str
    destination: str
    prefix: str
    role: str = ""
    noncurrent_days: int = 7
    replica_key: str = ""

    def __post_init__(self) -> None:
        if self.source == self.destination:
            raise InvalidInput(f"source and destination are both bucket {self.source!r}; S3 replicates between two")
        if self.role and not _ROLE.fullmatch(self.role):
            raise InvalidInput("the role must be an ARN like arn:aws:iam::123456789012:role/NAME")
        if self.noncurrent_days < 1:
            raise InvalidInput(f"versions are kept for a day at least, not {self.noncurrent_days}")
        if self.replica_key and not self.replica_key.startswith("arn:"):
            raise InvalidInput("the replicas' KMS key must be an ARN like arn:aws:kms:REGION:123456789012:key/ID")


def bucket_arn(bucket: str, role: str = "") -> str:
    """The bucket's ARN, in the partition (``aws``, ``aws-cn`` ...) that the role lives in."""
    found = _ROLE.fullmatch(role)
    return f"arn:{found['partition'] if found else 'aws'}:s3:::{bucket}"


def account_of(role: str) -> str:
    """The account that a role belongs to. Raises ``InvalidInput`` when it is no role's ARN."""
    found = _ROLE.fullmatch(role)
    if found is None:
        raise InvalidInput("name the role as an ARN like arn:aws:iam::123456789012:role/NAME")
    return found["account"]


def replication_id(wish: Replication) -> str:
    """The id of the rule for this prefix and destination."""
    return _rule_id("mirror", wish.prefix, wish.destination)


def replication_rule(wish: Replication, priority: int) -> Document:
    """The rule: new objects below the prefix, their metadata and tags, and delete markers."""
    destination: Document = {"Bucket": bucket_arn(wish.destination, wish.role)}
    rule: Document = {
        "ID": replication_id(wish),
        "Priority": priority,
        "Status": "Enabled",
        "Filter": {"Prefix": wish.prefix},
        "DeleteMarkerReplication": {"Status": "Enabled"},
        "Destination": destination,
    }
    if wish.replica_key:
        rule["SourceSelectionCriteria"] = {"SseKmsEncryptedObjects": {"Status": "Enabled"}}
        destination["EncryptionConfiguration"] = {"ReplicaKmsKeyID": wish.replica_key}
    return rule


def merged_replication(found: Document | None, wish: Replication) -> Document:
    """The bucket's replication with our rule in it, and every other rule as it was.

    A new rule gets the highest priority: of several rules with one destination only that one counts.

    Raises:
        PreconditionFailed: the bucket replicates as another role, or has rules of the first format.
        InvalidInput: neither the bucket nor the wish has a role.
    """
    rules = list((found or {}).get("Rules", ()))
    kept_role = (found or {}).get("Role", "")
    if not (wish.role or kept_role):
        raise InvalidInput(
            f"bucket {wish.source!r} has no replication role yet: pass --role ARN; without --dry-run and --apply "
            "the command prints the rights that the role needs"
        )
    if kept_role and wish.role and kept_role != wish.role:
        raise PreconditionFailed(
            f"bucket {wish.source!r} replicates as the role {kept_role}, and S3 takes one role a bucket: pass that one "
            "and give it the rights to the new destination"
        )
    ours = replication_id(wish)
    if any("Filter" not in rule for rule in rules if rule.get("ID") != ours):
        raise PreconditionFailed(
            f"bucket {wish.source!r} has replication rules of the first format (a prefix without a filter); S3 takes "
            "no other beside them: write them anew with a filter first"
        )
    role = wish.role or kept_role
    if _says_the_same(rules, replication_rule(replace(wish, role=role), 1)):
        return {"Role": role, "Rules": rules}
    own = next((rule for rule in rules if rule.get("ID") == ours), None)
    taken = [rule.get("Priority", 0) for rule in rules if rule is not own]
    priority = own.get("Priority") if own else None
    if priority is None or priority in taken:
        priority = max(taken, default=0) + 1
    rule = replication_rule(replace(wish, role=role), priority)
    return {"Role": role, "Rules": _replaced(rules, rule)}


def without_replication(found: Document | None, wish: Replication) -> Document | None:
    """The bucket's replication without our rule. None when no rule is left."""
    rules = [rule for rule in (found or {}).get("Rules", ()) if rule.get("ID") != replication_id(wish)]
    return {**(found or {}), "Rules": rules} if rules else None


def replicates_back(found: Document | None, wish: Replication) -> bool:
    """Whether the destination's own replication leads to the source, below the same prefix."""
    return any(
        rule.get("Status") == "Enabled"
        and rule["Destination"]["Bucket"].rpartition(":")[2] == wish.source
        and _prefixes_meet(_prefix_of(rule), wish.prefix)
        for rule in (found or {}).get("Rules", ())
    )


def lifecycle_id(prefix: str) -> str:
    """The id of the lifecycle rule for this prefix."""
    return _rule_id("versions", prefix)


def merged_lifecycle(found: Document | None, wish: Replication) -> Document:
    """The bucket's lifecycle with our rule in it, and all else as it was.

    The rule gives storage back: old versions, delete markers that stand alone, parts of given-up uploads.
    """
    rule: Document = {
        "ID": lifecycle_id(wish.prefix),
        "Status": "Enabled",
        "Filter": {"Prefix": wish.prefix},
        "Expiration": {"ExpiredObjectDeleteMarker": True},
        "NoncurrentVersionExpiration": {"NoncurrentDays": wish.noncurrent_days},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _ABORT_DAYS},
    }
    if found and _says_the_same(found.get("Rules", ()), rule):
        return found
    return {**(found or {}), "Rules": _replaced((found or {}).get("Rules", ()), rule)}


def lifecycle_dangers(bucket: str, found: Document | None, prefix: str) -> Iterator[str]:
    """Name the lifecycle rules of others that would delete or archive objects that lakeops needs."""
    for rule in (found or {}).get("Rules", ()):
        if rule.get("Status") != "Enabled" or not _prefixes_meet(_prefix_of(rule), prefix):
            continue
        name = f"lifecycle rule {rule.get('ID', '')!r} of bucket {bucket!r}"
        if {"Days", "Date"} & rule.get("Expiration", {}).keys():
            yield f"{name} deletes objects by age, those of live commits too: limit it to another prefix"
        if any(step.get("StorageClass") in _ARCHIVES for step in rule.get("Transitions", ())):
            yield f"{name} archives objects, which cannot be read then: limit it to another prefix"


def merged_versioning(found: Document | None) -> Document:
    """The bucket's versioning, switched on. What it says of MFA stays."""
    return {**(found or {}), "Status": "Enabled"}


def role_policy(wish: Replication) -> Document:
    """The rights that the role needs, for replication and for starting it on what existed before."""
    source, destination = bucket_arn(wish.source, wish.role), bucket_arn(wish.destination, wish.role)
    versions = ["s3:GetObjectVersionForReplication", "s3:GetObjectVersionAcl", "s3:GetObjectVersionTagging"]
    statements: list[Document] = [
        _allow(["s3:GetReplicationConfiguration", "s3:ListBucket", "s3:PutInventoryConfiguration"], source),
        _allow([*versions, "s3:InitiateReplication"], f"{source}/{wish.prefix}*"),
        _allow(["s3:ReplicateObject", "s3:ReplicateDelete", "s3:ReplicateTags"], f"{destination}/{wish.prefix}*"),
    ]
    if wish.replica_key:
        statements.append(_allow(["kms:Encrypt", "kms:GenerateDataKey"], wish.replica_key))
    return {"Version": "2012-10-17", "Statement": statements}


def trust_policy() -> Document:
    """The services that may take the role: S3, and S3 Batch Operations for what existed before."""
    services = ["s3.amazonaws.com", "batchoperations.s3.amazonaws.com"]
    statement = {"Effect": "Allow", "Principal": {"Service": services}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def documents(wish: Replication) -> Document:
    """Everything as S3 and IAM take it. Without a role in the wish, the replication has none."""
    rules = [replication_rule(wish, 1)]
    return {
        "versioning": merged_versioning(None),
        "lifecycle": merged_lifecycle(None, wish),
        "replication": {"Role": wish.role, "Rules": rules} if wish.role else {"Rules": rules},
        "policy": role_policy(wish),
        "trust": trust_policy(),
    }


def terraform(wish: Replication) -> Document:
    """Write the rules as a Terraform configuration for a file ``*.tf.json``. Without a role it makes one."""
    name = replication_id(wish)
    buckets = {f"{name}-source": wish.source, f"{name}-destination": wish.destination}
    policy: Document = {"name": name, "policy": _literal(json.dumps(role_policy(wish)))}
    resources: Document = {
        "aws_s3_bucket_versioning": {
            each: {"bucket": bucket, "versioning_configuration": {"status": "Enabled"}}
            for each, bucket in buckets.items()
        },
        "aws_s3_bucket_lifecycle_configuration": {
            each: {"bucket": bucket, "rule": _snake(merged_lifecycle(None, wish)["Rules"])}
            for each, bucket in buckets.items()
        },
        "aws_s3_bucket_replication_configuration": {
            name: {
                "bucket": wish.source,
                "role": wish.role or f"${{aws_iam_role.{name}.arn}}",
                "rule": [_snake(replication_rule(wish, 1))],
                "depends_on": [f"aws_s3_bucket_versioning.{each}" for each in buckets],
            }
        },
        "aws_iam_role_policy": {name: {"role": wish.role.rpartition("/")[2], **policy}},
    }
    if not wish.role:
        short = f"lakeops-mirror-{name.rpartition('-')[2]}"  # IAM takes 64 characters
        resources["aws_iam_role"] = {name: {"name": short, "assume_role_policy": json.dumps(trust_policy())}}
        resources["aws_iam_role_policy"][name]["role"] = f"${{aws_iam_role.{name}.id}}"
    return {"resource": resources}


def _snake(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A document of S3 as Terraform spells it: the same names in lower case, with underscores."""
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower(): _snake(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_snake(one) for one in value]
    return _literal(value) if isinstance(value, str) else value


def _literal(text: str) -> str:
    """The text for Terraform, which would take ``${`` and ``%{`` for expressions."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _says_the_same(rules: Sequence[Document], rule: Document) -> bool:
    """Whether one of the rules is this one under another id."""

    def meaning(one: Document) -> Document:
        return {key: value for key, value in one.items() if key not in {"ID", "Priority"}}

    return any(other.get("ID") != rule["ID"] and meaning(other) == meaning(rule) for other in rules)


def _allow(actions: Sequence[str], resource: str) -> Document:
    return {"Effect": "Allow", "Action": [*actions], "Resource": resource}


def _replaced(rules: Sequence[Document], rule: Document) -> list[Document]:
    """The rules with ours in the place of the one with its id, or at the end."""
    if any(other.get("ID") == rule["ID"] for other in rules):
        return [rule if other.get("ID") == rule["ID"] else other for other in rules]
    return [*rules, rule]


def _rule_id(kind: str, prefix: str, *more: str) -> str:
    """A name that people recognise and that no two prefixes share. S3 takes 255 characters."""
    digest = hashlib.sha256("\n".join((prefix, *more)).encode()).hexdigest()[:10]
    words = re.sub(r"[^A-Za-z0-9]+", "-", "/".join((prefix, *more))).strip("-")[:80]
    return f"lakeops-{kind}-{words}-{digest}"


def _prefix_of(rule: Mapping[str, Any]) -> str:
    found = rule.get("Filter", {})
    return str(found.get("Prefix") or found.get("And", {}).get("Prefix") or rule.get("Prefix") or "")


def _prefixes_meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
