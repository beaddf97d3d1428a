"""``lakeops mirror setup-s3``: what S3 needs to replicate a storage namespace, printed, compared or written."""

from __future__ import annotations

import json as json_
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli.output import Output, Styled
from lakeops.cli.replication import Destination, OptionalRepositoryUri, Source, namespaces
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput
from lakeops.model.words import counted

if TYPE_CHECKING:
    from lakeops.ops.setup_s3 import Plan
    from lakeops.store.s3.rules import Replication

app: typer.Typer = typer.Typer(add_completion=False)

_COLOURS = {"+": "green", "-": "red"}
_MAKE_A_ROLE = "make one with 'trust' and 'policy', and run this again with --role ARN."


class Format(StrEnum):
    """How the settings are printed."""

    JSON = "json"
    TERRAFORM = "terraform"


@command(
    app,
    "setup-s3",
    example="mirror setup-s3 lakefs://flights --destination s3://elsewhere/flights "
    "--role arn:aws:iam::123456789012:role/replicate --check",
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
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Compare with the buckets; exit code 1 when they differ.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", metavar="", help="Write the buckets' versions, lifecycle and replication.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", metavar="", help="Take the replication rule away, as after a fail-over.")
    ] = False,
    start_batch: Annotated[
        bool, typer.Option("--start-batch", metavar="", help="With --apply: replicate what is there already, too.")
    ] = False,
    batch_role: Annotated[
        str, typer.Option(metavar="ARN", help="The IAM role of that job; the replication's when left out.")
    ] = "",
) -> None:
    """Print what S3 needs to replicate a storage namespace to another bucket, deletions included.

    With --check, compare it with what the buckets have. With --apply, show the change of the buckets' settings, ask,
    and write it. Other rules stay as they are. IAM roles and policies are printed only.
    """
    from lakeops.ops import setup_s3

    if apply and (check or remove):
        raise InvalidInput("--apply writes the settings; leave out --check and --remove")
    if start_batch and not apply:
        raise InvalidInput("--start-batch goes with --apply")
    job_id = None
    lake = out.lake
    here, there = namespaces(lake, uri, source, destination)
    given: dict[str, Any] = {"role": role, "noncurrent_days": noncurrent_days, "replica_key": replica_kms_key}
    if not (check or apply or remove):
        _print(out, setup_s3.replication_of(here, there, **given), form)
        return
    settings = lake.stores().settings
    if remove:
        plan = setup_s3.make_removal_plan(here, there, settings)
    else:
        plan = setup_s3.make_plan(here, there, settings, batch_role=batch_role, **given)
    _warn(out, plan)
    if check:
        if not out.as_json:
            _show(out, plan)
    else:
        if plan.changes or start_batch:
            out.confirm(_question(plan, start_batch=start_batch), lambda: _show(out, plan))
        setup_s3.carry_out(plan)
        if start_batch:
            job_id = setup_s3.start_batch(plan)
    if out.as_json:
        out.document(_document(plan, applied=not check, job_id=job_id))
    else:
        _print_result(out, plan, removed=remove, checked=check, job_id=job_id)
    if check and plan.changes:
        raise typer.Exit(1)


def _print(out: Output, wish: Replication, form: Format) -> None:
    from lakeops.store.s3.rules import documents, terraform

    printed = terraform(wish) if form is Format.TERRAFORM else documents(wish)
    out.answer(printed, *([line] for line in json_.dumps(printed, indent=2).splitlines()))
    if not wish.role:
        out.note("No role is named: ", "Terraform makes one." if form is Format.TERRAFORM else _MAKE_A_ROLE)
    out.note("Each setting is one document of its bucket: add the bucket's other rules to it, or use --apply.")


def _question(plan: Plan, *, start_batch: bool) -> str:
    buckets = " and ".join(sorted({repr(step.bucket.name) for step in plan.changes}))
    changes = f"Change {counted(len(plan.changes), 'setting')} of {buckets}"
    batch = "start the batch replication job"
    if not plan.changes:
        return f"{batch.capitalize()}?"
    return f"{changes} and {batch}?" if start_batch else f"{changes}?"


def _warn(out: Output, plan: Plan) -> None:
    for warning in plan.warnings:
        out.note(("Warning:", "yellow"), " ", warning)


def _show(out: Output, plan: Plan) -> None:
    for step in plan.changes:
        out.message((f"{step.setting} of bucket {step.bucket.name}", "bold"))
        for line in step.diff():
            text: Styled = (line, _COLOURS[line[0]]) if line[0] in _COLOURS else line
            out.message("  ", text)


def _print_result(out: Output, plan: Plan, *, removed: bool, checked: bool, job_id: str | None) -> None:
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
        out.note("What was there before is not replicated by the rule. Pass --start-batch, or run once:")
        out.note("  ", plan.batch.command)
    elif plan.existing:
        out.note("What was there before is not replicated by the rule; 'lakeops mirror replicate' copies it.")


def _document(plan: Plan, *, applied: bool, job_id: str | None) -> dict[str, Any]:
    batch = None
    if plan.batch is not None:
        batch = {"job": plan.batch.job, "command": plan.batch.command, "region": plan.batch.region, "job_id": job_id}
    return {
        "source": f"s3://{plan.wish.source}/{plan.wish.prefix}",
        "destination": f"s3://{plan.wish.destination}/{plan.wish.prefix}",
        "applied": applied,
        "changed": len(plan.changes),
        "steps": [step.to_json() for step in plan.steps],
        "warnings": [*plan.warnings],
        "existing": plan.existing,
        "batch": batch,
    }
