"""Setting up S3's own replication between two namespaces: compare it with what the buckets have, and write it.

Only settings of the buckets are written, and none that was not shown: each is read again before it is replaced. The
permissions of the role that S3 replicates as are printed for the people who manage IAM. Versioning comes first, because
S3 takes no replication without it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput, StoreError, Transient, unsupported
from lakeops.store.base import StoreSettings
from lakeops.store.open import Location, parse_location
from lakeops.store.s3 import replication_rules as rules
from lakeops.store.s3.replication_rules import Bucket, Document, Replication, Setting
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
class ReplicationSetup:
    """The steps that let one namespace be replicated to another, in the order in which they are written.

    Steps that change nothing are included. ``batch`` is the job for the objects that are there already: the parameters
    of ``create_job`` (``job``), the same as a command line (``command``), and the ``region``. None when there are no
    objects (``existing``), or the server has no such jobs.
    """

    wish: Replication
    steps: tuple[SettingChange, ...]
    warnings: tuple[str, ...] = ()
    batch: Document | None = None
    existing: bool = False

    @property
    def changes(self) -> list[SettingChange]:
        """The steps that have something to write."""
        return [step for step in self.steps if step.changes]


def make_plan(wish: Replication, settings: StoreSettings, *, batch_role: str = "") -> ReplicationSetup:
    """Plan what has to change so that S3 replicates a namespace. Reads the buckets' settings, writes nothing.

    The batch job runs as ``batch_role``, an ARN; by default as the role that S3 replicates as.

    Raises:
        InvalidInput: neither the wish nor the bucket has a role.
        PreconditionFailed: the bucket's other rules do not allow it.
        StoreError: no such bucket, or a right is missing.
    """
    here, there = Bucket(wish.source, settings), Bucket(wish.destination, settings)
    versioning, lifecycle = ([(one, one.read(name)) for one in (there, here)] for name in ("versioning", "lifecycle"))
    replication = here.read("replication")
    after = rules.merged_replication(replication, wish)
    steps = [SettingChange(one, "versioning", old, rules.merged_versioning(old)) for one, old in versioning]
    steps += [SettingChange(one, "lifecycle", old, rules.merged_lifecycle(old, wish)) for one, old in lifecycle]
    steps.append(SettingChange(here, "replication", replication, after))
    warnings = [
        danger for one, old in reversed(lifecycle) for danger in rules.lifecycle_dangers(one.name, old, wish.prefix)
    ]
    back: Document | None = None
    with suppress(StoreError):  # these credentials may not look there
        back = there.read("replication")
    if rules.replicates_back(back, wish):
        warnings.append(
            f"bucket {wish.destination!r} replicates to {wish.source!r} as well: what is deleted on one side goes on "
            "both. After a fail-over, take the old rule away first: setup-s3 --remove"
        )
    if not wish.replica_key and here.encrypts_with_kms():
        warnings.append(
            f"bucket {wish.source!r} encrypts with KMS, and S3 does not replicate such objects unless a key for the "
            "replicas is named: pass --replica-kms-key ARN"
        )
    existing = next(iter(S3Store(wish.source, wish.prefix.rstrip("/"), settings).list()), None) is not None
    batch = None
    if existing and settings.endpoint_url is None:
        job, region = rules.batch_job(wish, batch_role or after["Role"], Ids().new()), here.region
        batch = {"job": job, "command": rules.batch_command(job, region), "region": region}
    return ReplicationSetup(wish, tuple(steps), tuple(warnings), batch, existing)


def make_removal_plan(wish: Replication, settings: StoreSettings) -> ReplicationSetup:
    """Plan how S3 stops to replicate the namespace. Versions and lifecycle stay as they are.

    Only the source bucket is asked, so it works when the other one is out of reach.
    """
    here = Bucket(wish.source, settings)
    found = here.read("replication")
    return ReplicationSetup(wish, (SettingChange(here, "replication", found, rules.without_replication(found, wish)),))


def replication_of(source: str, destination: str, **more: Any) -> Replication:  # noqa: ANN401 - Replication's fields
    """Make a replication of the URLs of two namespaces: two buckets with one prefix. Raises ``InvalidInput``."""
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
        step.bucket.write(step.setting, step.after)


def start_batch(plan: ReplicationSetup) -> str:
    """Start the job for what existed before. Returns its id.

    Raises:
        LakeopsError: ``unsupported``: the server has no such jobs.
        StoreError: S3 refused.
    """
    if plan.batch is None:
        raise unsupported(
            "there is no batch replication here: the source is empty, or its server is not AWS; "
            "'lakeops mirror replicate' copies what is there"
        )
    return rules.start_job(rules.control_client(plan.batch["region"]), plan.batch["job"])


def _bucket_place(url: str) -> Location:
    place = parse_location(url)
    if place.scheme != "s3":
        raise InvalidInput(
            f"{place.url} is no bucket, and only buckets replicate by themselves; lakeops mirror replicate copies from "
            "and to directories"
        )
    return place


def _times_as_text(document: Document | None) -> Any:  # noqa: ANN401 - any JSON value
    """The document with times as text: other people's lifecycle rules may hold dates."""
    return json.loads(json.dumps(document, default=str))


def _lines(document: Document | None) -> list[str]:
    return [] if not document else json.dumps(_times_as_text(document), indent=2, sort_keys=True).splitlines()
