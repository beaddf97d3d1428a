"""``lakeops mirror replicate`` and ``setup-s3``: what copies the objects of a mirror's source."""

from __future__ import annotations

import json as json_
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import argument, flag, lake_uri, parsed, url_of, value
from lakeops.cli.output import Printer, Styled
from lakeops.cli.session import Session, command
from lakeops.model.clock import pause
from lakeops.model.errors import InvalidInput, NotAllReplicated, NotAMirror, Transient
from lakeops.model.formatting import counted, human_size
from lakeops.model.names import LakeUri

if TYPE_CHECKING:
    from lakeops.lake import Lake
    from lakeops.lake.mirror import Mirror
    from lakeops.ops.mirror.replicate import Replicated
    from lakeops.ops.mirror.setup_s3 import ReplicationSetup
    from lakeops.store.s3.replication_rules import Replication

app: typer.Typer = typer.Typer(add_completion=False)

OptionalRepositoryUri = Annotated[
    LakeUri | None,
    argument(
        "lakefs://REPO",
        "A repository, whose storage namespace is the source; or a mirror, which knows source and destination.",
        parser=parsed(lake_uri),
    ),
]
Source = Annotated[
    str | None,
    value("--source", "URL", "The storage namespace to copy from, in place of REPO's.", parser=parsed(url_of)),
]
Destination = Annotated[
    str | None, value("--destination", "URL", "The storage namespace to copy to.", parser=parsed(url_of))
]


@command(
    app,
    "replicate",
    example="mirror replicate lakefs://flights --destination file:///mnt/backup/flights",
    progress=True,
)
def replicate(
    session: Session,
    uri: OptionalRepositoryUri = None,
    source: Source = None,
    destination: Destination = None,
    source_endpoint: Annotated[
        str | None, value("--source-endpoint", "URL", "The S3-compatible server of the source, if another.")
    ] = None,
    delete: Annotated[bool, flag("--delete", "Then delete what the source does not have.")] = False,
    force: Annotated[bool, flag("--force", "Delete even a large share of what is there.")] = False,
    watch: Annotated[
        float | None, value("--watch", "SECONDS", "Repeat until interrupted, with a pause of this length between.")
    ] = None,
) -> None:
    """Copy objects, ranges and metaranges that are missing, for stores that do not replicate by themselves.

    Run it again after a failure: it goes on where it stopped. With --watch, --json prints a document for every pass
    that did something.
    """
    if watch is not None and watch <= 0:
        raise InvalidInput(f"--watch takes seconds above 0, not {watch:g}")
    lake = session.lake
    mirror = mirror_at(lake, uri, source, destination)
    here, there = ("", "") if mirror else namespaces(lake, uri, source, destination)

    def run() -> Replicated:
        with session.progress("Replicating"):
            if mirror is not None:
                return mirror.replicate(delete=delete, force=force)
            return lake.replicate(here, there, source_endpoint=source_endpoint, delete=delete, force=force)

    if watch is None:
        _print_copied(session, run())
        return
    while True:
        try:
            done = run()
        except (Transient, NotAllReplicated) as error:
            session.message(("Not all replicated:", "yellow"), " ", error.message)
        else:
            if done.copied or done.deleted:
                _print_copied(session, done)
                session.flush()
        pause(watch)


def mirror_at(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> Mirror | None:
    """Open the mirror that is named alone, because it knows source and destination. None otherwise."""
    if uri is None or source is not None or destination is not None:
        return None
    name = uri.only_repository()
    try:
        return lake.mirror(name)
    except NotAMirror:
        return None


def namespaces(lake: Lake, uri: LakeUri | None, source: str | None, destination: str | None) -> tuple[str, str]:
    """Find the storage namespaces to copy from and to. Raises ``InvalidInput`` when one is not known."""
    mirror = mirror_at(lake, uri, source, destination)
    if mirror is not None:
        return mirror.source_namespace(), mirror.storage_namespace
    if uri is not None:
        source = source or lake.repository(uri.only_repository()).storage_namespace
    if source is None:
        raise InvalidInput("name the repository to copy, lakefs://REPO, or its storage namespace with --source")
    if destination is None:
        raise InvalidInput("name the storage namespace to copy to with --destination")
    return url_of(source), destination


def _print_copied(session: Session, done: Replicated) -> None:
    words = [f"{counted(done.copied, 'object')} copied ({human_size(done.copied_bytes)})", f"{done.present:,} present"]
    words += [f"{done.replaced:,} replaced other contents"] if done.replaced else []
    words += [f"{done.vanished:,} gone from the source meanwhile"] if done.vanished else []
    words += [f"{done.deleted:,} deleted"] if done.deleted else []
    if done.extra > done.deleted:
        words.append(f"{done.extra - done.deleted:,} not at the source (--delete removes them)")
    session.answer(done, [", ".join(words)])


_COLOURS = {"+": "green", "-": "red"}
_MAKE_A_ROLE = "make one with 'trust' and 'policy', and run this again with --role ARN."


class Format(StrEnum):
    """A format to print the settings in."""

    JSON = "json"
    TERRAFORM = "terraform"


@command(
    app,
    "setup-s3",
    example="mirror setup-s3 lakefs://flights --destination s3://elsewhere/flights "
    "--role arn:aws:iam::123456789012:role/replicate --dry-run",
    asks=True,
)
def setup(
    out: Session,
    uri: OptionalRepositoryUri = None,
    source: Source = None,
    destination: Destination = None,
    role: Annotated[
        str, typer.Option(metavar="ARN", help="The IAM role that S3 replicates as; the bucket's own when left out.")
    ] = "",
    noncurrent_days: Annotated[
        int, typer.Option(min=1, metavar="DAYS", help="How long versions of deleted objects are kept.")
    ] = 7,
    replica_kms_key: Annotated[
        str, typer.Option("--replica-kms-key", metavar="ARN", help="The KMS key for replicas of encrypted objects.")
    ] = "",
    form: Annotated[
        Format, typer.Option("--format", help="As S3 and IAM take it, or as a Terraform configuration (.tf.json).")
    ] = Format.JSON,
    dry_run: Annotated[bool, flag("--dry-run -n", "Compare with the buckets; exit code 1 when they differ.")] = False,
    apply: Annotated[bool, flag("--apply", "Write the buckets' versions, lifecycle and replication.")] = False,
    remove: Annotated[bool, flag("--remove", "Take the replication rule away, as after a fail-over.")] = False,
    start_batch: Annotated[bool, flag("--start-batch", "With --apply: replicate what is there already, too.")] = False,
    batch_role: Annotated[
        str, typer.Option(metavar="ARN", help="The IAM role of that job; the replication's when left out.")
    ] = "",
) -> None:
    """Print what S3 needs to replicate a storage namespace to another bucket, deletions included.

    With --dry-run, compare it with what the buckets have. With --apply, show the change of the buckets' settings, ask,
    and write it. Other rules stay as they are. IAM roles and policies are printed only.
    """
    from lakeops.ops.mirror import setup_s3

    if apply and (dry_run or remove):
        raise InvalidInput("--apply writes the settings; leave out --dry-run and --remove")
    if start_batch and not apply:
        raise InvalidInput("--start-batch goes with --apply")
    job_id = None
    lake = out.lake
    wish = setup_s3.replication_of(
        *namespaces(lake, uri, source, destination),
        role=role,
        noncurrent_days=noncurrent_days,
        replica_key=replica_kms_key,
    )
    if not (dry_run or apply or remove):
        _print(out, wish, form)
        return
    settings = lake.stores().settings
    if remove:
        plan = setup_s3.make_removal_plan(wish, settings)
    else:
        plan = setup_s3.make_plan(wish, settings, batch_role=batch_role)
    for warning in plan.warnings:
        out.note(("Warning:", "yellow"), " ", warning)
    if dry_run:
        if not out.as_json:
            _show(out, plan)
    else:
        if plan.changes or start_batch:
            out.confirm(_question(plan, start_batch=start_batch), lambda: _show(out, plan))
        setup_s3.carry_out(plan)
        if start_batch:
            job_id = setup_s3.start_batch(plan)
    if out.as_json:
        document = {name: f"s3://{getattr(wish, name)}/{wish.prefix}" for name in ("source", "destination")}
        counts = {"applied": not dry_run, "changed": len(plan.changes), "steps": plan.steps}
        batch = plan.batch and {**plan.batch, "job_id": job_id}
        more = {"warnings": [*plan.warnings], "existing": plan.existing, "batch": batch}
        out.document({**document, **counts, **more})
    else:
        _print_result(out, plan, removed=remove, checked=dry_run, job_id=job_id)
    if dry_run and plan.changes:
        raise typer.Exit(1)


def _print(out: Printer, wish: Replication, form: Format) -> None:
    from lakeops.store.s3.replication_rules import documents, terraform

    printed = terraform(wish) if form is Format.TERRAFORM else documents(wish)
    out.answer(printed, *([line] for line in json_.dumps(printed, indent=2).splitlines()))
    if not wish.role:
        out.note("No role is named: ", "Terraform makes one." if form is Format.TERRAFORM else _MAKE_A_ROLE)
    out.note("Each setting is one document of its bucket: add the bucket's other rules to it, or use --apply.")


def _question(plan: ReplicationSetup, *, start_batch: bool) -> str:
    buckets = " and ".join(sorted({repr(step.bucket.name) for step in plan.changes}))
    changes = f"Change {counted(len(plan.changes), 'setting')} of {buckets}"
    batch = "start the batch replication job"
    if not plan.changes:
        return f"{batch.capitalize()}?"
    return f"{changes} and {batch}?" if start_batch else f"{changes}?"


def _show(out: Printer, plan: ReplicationSetup) -> None:
    for step in plan.changes:
        out.message((f"{step.setting} of bucket {step.bucket.name}", "bold"))
        for line in step.diff():
            text: Styled = (line, _COLOURS[line[0]]) if line[0] in _COLOURS else line
            out.message("  ", text)


def _print_result(out: Printer, plan: ReplicationSetup, *, removed: bool, checked: bool, job_id: str | None) -> None:
    wish = plan.wish
    what = f"s3://{wish.source}/{wish.prefix} to s3://{wish.destination}/{wish.prefix}"
    if removed and not (checked and plan.changes):
        out.line("There is no replication of ", what, " any more." if plan.changes else "; nothing to change.")
    elif not plan.changes:
        out.line("Replication of ", what, " is set up; nothing to change.")
    elif checked:
        verb = "remove" if removed else "write"
        out.line("Replication of ", what, f": {counted(len(plan.changes), 'setting')} to {verb}.")
    else:
        out.line("Set up replication of ", what, f": {counted(len(plan.changes), 'setting')} changed.")
    if job_id is not None:
        out.line("Batch replication job ", (job_id, "green"), " replicates what was there before.")
    elif plan.batch is not None:
        out.note("The rule does not replicate objects that were there before. Pass --start-batch, or run once:")
        out.note("  ", plan.batch["command"])
    elif plan.existing:
        out.note("The rule does not replicate objects that were there before; 'lakeops mirror replicate' copies them.")
