"""``lakeops mirror setup-s3``: have S3 replicate a repository's storage namespace to another bucket."""

from __future__ import annotations

import json as json_
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli.options import Json, Yes
from lakeops.cli.output import Output, Part, counted
from lakeops.cli.places import Destination, OptionalRepositoryUri, Source, namespaces
from lakeops.cli.session import agree, open_lake
from lakeops.model.errors import InvalidInput

if TYPE_CHECKING:
    from lakeops.ops.setup_s3 import Plan
    from lakeops.store.s3.rules import Replication

app = typer.Typer(add_completion=False)

_COLOURS = {"+": "green", "-": "red"}


@app.command(
    "setup-s3",
    epilog="Example: lakeops mirror setup-s3 lakefs://flights --destination s3://elsewhere/flights "
    "--role arn:aws:iam::123456789012:role/replicate",
)
def setup(
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
    start_batch: Annotated[
        bool, typer.Option("--start-batch", metavar="", help="Also start replicating what is there already.")
    ] = False,
    batch_role: Annotated[
        str, typer.Option(metavar="ARN", help="The IAM role of that job; the replication's when left out.")
    ] = "",
    print_policy: Annotated[
        bool, typer.Option("--print-policy", metavar="", help="Only print what the role must be allowed to do.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", metavar="", help="Take the rule away again, as after a fail-over.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only show what would change.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Have S3 replicate a storage namespace to another bucket, deletions included; or no longer.

    Shows how the buckets' versions, lifecycle and replication would change, and asks. Other rules stay as they are.
    """
    from lakeops.ops import setup_s3

    out = Output(json)
    with open_lake(out) as lake:
        here, there = namespaces(lake, uri, source, destination)
        if print_policy:
            _policies(out, setup_s3.replication_of(here, there, role=role, replica_key=replica_kms_key))
            return
        settings = lake.stores().settings
        if remove:
            if start_batch:
                raise InvalidInput("--remove takes a rule away, and --start-batch replicates by it; give one of them")
            plan = setup_s3.make_removal_plan(here, there, settings)
        else:
            plan = setup_s3.make_plan(
                here,
                there,
                settings,
                role=role,
                batch_role=batch_role,
                noncurrent_days=noncurrent_days,
                replica_key=replica_kms_key,
            )
        _warn(out, plan)
        job_id = None
        if dry_run:
            if not json:
                _show(out, plan)
        else:
            if plan.changes or start_batch:
                agree(out, yes, _question(plan, start_batch=start_batch), lambda: _show(out, plan))
            setup_s3.carry_out(plan)
            if start_batch:
                job_id = setup_s3.start_batch(plan)
    if json:
        out.document(_document(plan, applied=not dry_run, job_id=job_id))
        return
    _tell(out, plan, removed=remove, dry_run=dry_run, job_id=job_id)


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
        out.say((f"{step.setting} of bucket {step.bucket.name}", "bold"))
        for line in step.diff():
            text: Part = (line, _COLOURS[line[0]]) if line[0] in _COLOURS else line
            out.say("  ", text)


def _tell(out: Output, plan: Plan, *, removed: bool, dry_run: bool, job_id: str | None) -> None:
    wish = plan.wish
    what = f"s3://{wish.source}/{wish.prefix} to s3://{wish.destination}/{wish.prefix}"
    if removed and not dry_run:
        out.line("There is no replication of ", what, " any more." if plan.changes else "; nothing to change.")
    elif not plan.changes:
        out.line("Replication of ", what, " is set up; nothing to change.")
    elif dry_run:
        out.line(counted(len(plan.changes), "setting"), " would change for replication of ", what, ".")
    else:
        out.line("Set up replication of ", what, f": {counted(len(plan.changes), 'setting')} changed.")
    if job_id is not None:
        out.line("Batch replication job ", (job_id, "green"), " replicates what was there before.")
    elif plan.batch is not None:
        out.note("What was there before is not replicated by the rule. Pass --start-batch, or run once:")
        out.note("  ", plan.batch.command)
    elif plan.existing:
        out.note("What was there before is not replicated by the rule; 'lakeops mirror replicate' copies it.")


def _policies(out: Output, wish: Replication) -> None:
    from lakeops.store.s3.rules import role_policy, trust_policy

    if out.as_json:
        out.document({"policy": role_policy(wish), "trust": trust_policy()})
        return
    for title, policy in (("Permissions of the role:", role_policy(wish)), ("Who may take it:", trust_policy())):
        out.note((title, "bold"))
        for line in json_.dumps(policy, indent=2).splitlines():
            out.line(line)


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
