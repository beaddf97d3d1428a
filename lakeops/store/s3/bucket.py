"""A bucket's own settings: versions, replication, lifecycle. Read whole, written whole, as S3 has it.

An error names the right that is missing, because people who write to a bucket are seldom those who may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from botocore.exceptions import ClientError

from lakeops.model.errors import StoreError, Unsupported
from lakeops.store.s3.batch import region_of
from lakeops.store.s3.client import client
from lakeops.store.s3.failures import code_of, status_of, translated
from lakeops.store.s3.rules import Document
from lakeops.store.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

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
        settings: endpoint and region; credentials come from boto3's chain.
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
        """Whether new objects are encrypted with KMS by default; False too where nobody may ask."""
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
