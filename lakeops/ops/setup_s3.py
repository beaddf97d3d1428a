"""Setting up S3's own replication between two namespaces: compare it with what the buckets have, and write it.

Only settings of the buckets are written. The permissions of the role that S3 replicates as are printed and never
written, because roles belong to the people who manage IAM. Nothing is written that was not shown: each setting is read
again before it is replaced, and a setting that somebody else changed meanwhile stops the run. Versioning comes first,
because S3 takes no replication without it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, StoreError, Transient, Unsupported
from lakeops.store.base import StoreSettings
from lakeops.store.open import Location, parse_location
from lakeops.store.s3.replication_rules import (
    Bucket,
    Document,
    Replication,
    Setting,
    batch_command,
    batch_job,
    control_client,
    lifecycle_dangers,
    merged_lifecycle,
    merged_replication,
    merged_versioning,
    replicates_back,
    start_job,
    without_replication,
)
from lakeops.store.s3.store import S3Store


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting of one bucket: as it is, and as it shall be."""

    bucket: Bucket
    setting: Setting
    before: Document | None
    after: Document | None

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    def diff(self) -> Iterator[str]:
        """The change as lines that begin with ``+``, ``-`` or a space."""
        old, new = (_lines(document) for document in (self.before, self.after))
        yield from (line for line in difflib.unified_diff(old, new, n=2, lineterm="") if line[:2] not in {"--", "++"})

    def to_json(self) -> dict[str, Any]:
        """The step for programs."""
        return {
            "bucket": self.bucket.name,
            "setting": self.setting,
            "changed": self.changes,
            "before": _times_as_text(self.before),
            "after": _times_as_text(self.after),
        }


@dataclass(frozen=True, slots=True)
class BatchCopyJob:
    """The job for what existed before: the parameters of ``create_job``, and the same as a command line."""

    job: Document
    command: str
    region: str


@dataclass(frozen=True, slots=True)
class ReplicationSetup:
    """The steps that let one namespace be replicated to another.

    Attributes:
        steps: settings in the order in which they are written, those that stay as they are included.
        warnings: what would go wrong, and what to do about it.
        batch: the job for the objects that are there already. None when there are none, or the server has no such jobs.
        existing: whether there are objects already, which the rule does not concern.
    """

    wish: Replication
    steps: tuple[SettingChange, ...]
    warnings: tuple[str, ...]
    batch: BatchCopyJob | None
    existing: bool

    @property
    def changes(self) -> list[SettingChange]:
        """The steps that have something to write."""
        return [step for step in self.steps if step.changes]


def make_plan(
    source: str,
    destination: str,
    settings: StoreSettings,
    *,
    role: str = "",
    batch_role: str = "",
    noncurrent_days: int = 7,
    replica_key: str = "",
    ids: Ids | None = None,
) -> ReplicationSetup:
    """What has to change so that S3 replicates a namespace. Reads the buckets' settings, writes nothing.

    Args:
        source: the namespace that is written to, ``s3://bucket/prefix``.
        destination: the mirror's namespace: another bucket, the same prefix.
        settings: how both buckets are reached.
        role: the ARN of the role that S3 replicates as. The one that the bucket has when empty.
        batch_role: the ARN of the role for the batch job. The replication's when empty.
        noncurrent_days: how long versions of deleted objects are kept.
        replica_key: the ARN of the KMS key for replicas.
        ids: names the batch job's request.

    Raises:
        InvalidInput: not two buckets, or different prefixes, or no role.
        PreconditionFailed: the bucket's other rules do not allow it.
        StoreError: no such bucket, or a right is missing.
    """
    wish = replication_of(source, destination, role=role, noncurrent_days=noncurrent_days, replica_key=replica_key)
    here, there = Bucket(wish.source, settings), Bucket(wish.destination, settings)
    found = {(bucket.name, name): bucket.read(name) for bucket in (here, there) for name in _READ}
    replication = here.read("replication")
    after = merged_replication(replication, wish)
    steps = [
        *(
            SettingChange(one, "versioning", old := found[one.name, "versioning"], merged_versioning(old))
            for one in (there, here)
        ),
        *(
            SettingChange(one, "lifecycle", old := found[one.name, "lifecycle"], merged_lifecycle(old, wish))
            for one in (there, here)
        ),
        SettingChange(here, "replication", replication, after),
    ]
    warnings = [
        danger
        for one in (here, there)
        for danger in lifecycle_dangers(one.name, found[one.name, "lifecycle"], wish.prefix)
    ]
    if replicates_back(_read_if_allowed(there), wish):
        warnings.append(
            f"bucket {wish.destination!r} replicates to {wish.source!r} as well: what is deleted on one side goes on "
            "both. After a fail-over, take the old rule away first: setup-s3 --remove"
        )
    if not replica_key and here.encrypts_with_kms():
        warnings.append(
            f"bucket {wish.source!r} encrypts with KMS, and S3 does not replicate such objects unless a key for the "
            "replicas is named: pass --replica-kms-key ARN"
        )
    existing = _has_objects(S3Store(wish.source, wish.prefix.rstrip("/"), settings))
    batch = None
    if existing and settings.endpoint_url is None:
        region = here.region
        job = batch_job(wish, batch_role or after["Role"], (ids or Ids()).new())
        batch = BatchCopyJob(job, batch_command(job, region), region)
    return ReplicationSetup(wish, tuple(steps), tuple(warnings), batch, existing)


def make_removal_plan(source: str, destination: str, settings: StoreSettings) -> ReplicationSetup:
    """What has to change so that S3 replicates the namespace no longer. Versions and lifecycle stay as they are.

    Only the source bucket is asked, so it works when the other one is out of reach.
    """
    wish = replication_of(source, destination)
    here = Bucket(wish.source, settings)
    found = here.read("replication")
    step = SettingChange(here, "replication", found, without_replication(found, wish))
    return ReplicationSetup(wish, (step,), warnings=(), batch=None, existing=False)


def replication_of(source: str, destination: str, **more: Any) -> Replication:  # noqa: ANN401 - Replication's fields
    """What is to be replicated, from the URLs of two namespaces. Raises ``InvalidInput``."""
    here, there = (_bucket_place(url) for url in (source, destination))
    if here.bucket != there.bucket and here.path != there.path:
        raise InvalidInput(
            f"S3 replication keeps objects' names, so the mirror of {here.url} must lie in "
            f"{Location('s3', there.bucket, here.path).url}, not in {there.url}; 'lakeops mirror replicate' copies "
            "anywhere"
        )
    return Replication(here.bucket, there.bucket, f"{here.path}/" if here.path else "", **more)


def carry_out(plan: ReplicationSetup) -> None:
    """Write what the plan changes, one setting after another. Running it again goes on where it stopped.

    Raises:
        Transient: somebody changed a setting since the plan was made. Nothing of theirs was overwritten.
        StoreError: S3 refused.
    """
    for step in plan.changes:
        if step.bucket.read(step.setting) != step.before:
            raise Transient(
                f"somebody else changed the {step.setting} of bucket {step.bucket.name!r} meanwhile; run it again"
            )
        if step.after is None:
            step.bucket.clear_replication()
        else:
            step.bucket.write(step.setting, step.after)


def start_batch(plan: ReplicationSetup) -> str:
    """Start the job for what existed before. Returns its id.

    Raises:
        Unsupported: the server has no such jobs.
        StoreError: S3 refused.
    """
    if plan.batch is None:
        raise Unsupported(
            "there is no batch replication here: the source is empty, or its server is not AWS; "
            "'lakeops mirror replicate' copies what is there"
        )
    return start_job(control_client(plan.batch.region), plan.batch.job)


def _read_if_allowed(bucket: Bucket) -> Document | None:
    """The bucket's replication. None too where these credentials may not look."""
    try:
        return bucket.read("replication")
    except StoreError:
        return None


_READ: tuple[Setting, ...] = ("versioning", "lifecycle")


def _bucket_place(url: str) -> Location:
    place = parse_location(url)
    if place.scheme != "s3":
        raise InvalidInput(
            f"{place.url} is no bucket, and only buckets replicate by themselves; lakeops mirror replicate copies from "
            "and to directories"
        )
    return place


def _has_objects(store: S3Store) -> bool:
    return next(iter(store.list()), None) is not None


def _times_as_text(document: Document | None) -> Any:  # noqa: ANN401 - any JSON value
    """The document with times as text: other people's lifecycle rules may hold dates."""
    return json.loads(json.dumps(document, default=str))


def _lines(document: Document | None) -> list[str]:
    return [] if not document else json.dumps(_times_as_text(document), indent=2, sort_keys=True).splitlines()
