"""``lakeops repo`` and ``hook``: create, list and forget repositories, and run code beside their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakeops.cli.options import Metadata, RemovedKeys, RepositoryUri, argument, parse_metadata, value
from lakeops.cli.output import Styled
from lakeops.cli.session import Session, command
from lakeops.model.formatting import counted, moment
from lakeops.model.protection import ACTIONS, BEFORE, SECONDS, Hook

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.model.marks import Owner
    from lakeops.model.mirrors import MirrorRecord
    from lakeops.model.records import RepositoryRecord

app: typer.Typer = typer.Typer(help="Create, list and delete repositories.", add_completion=False)


@command(app, "create", example="repo create lakefs://flights s3://bucket/flights")
def create(
    session: Session,
    uri: RepositoryUri,
    namespace: Annotated[
        str | None,
        argument(
            "NAMESPACE",
            "Where its objects go: file:///path, s3://, az:// or gs://bucket/prefix. Default: below LAKEOPS_HOME.",
        ),
    ] = None,
    default_branch: Annotated[str, typer.Option(metavar="NAME", help="The first branch.")] = "main",
    meta: Metadata = None,
) -> None:
    """Create a repository with one initial commit."""
    name = uri.only_repository()
    made = session.lake.create_repository(name, namespace, default_branch=default_branch, metadata=parse_metadata(meta))
    repository = made.record
    session.answer(
        repository,
        ["Repository ", (f"lakefs://{name}", "green"), " created in ", repository.storage_namespace],
        ["Default branch: ", repository.default_branch],
    )


@command(app, "list", example="repo list", lists="prefix after amount")
def list_all(session: Session) -> None:
    """List all repositories."""

    def row(record: RepositoryRecord) -> tuple[Styled, ...]:
        where = record.storage_namespace + (" (read-only)" if record.read_only else "")
        return ((record.id, "cyan"), record.default_branch, moment(record.creation_date)[:10], where)

    found = session.part(session.lake.repositories(prefix=session.prefix, after=session.after))
    header = ("Repository", "Default branch", "Created", "Storage namespace")
    session.table((one.record for one in found), header, row)


@command(app, "metadata", example="repo metadata lakefs://flights --meta owner=ada --remove contact")
def metadata(session: Session, uri: RepositoryUri, meta: Metadata = None, remove: RemovedKeys = None) -> None:
    """Show a repository's own metadata, or change it: key/value pairs such as an owner or a contact.

    Keys that are not named stay as they are.
    """
    repository = session.repository(uri)
    changes: dict[str, str | None] = {**dict.fromkeys(remove or ()), **parse_metadata(meta)}
    pairs = repository.update_metadata(changes) if changes else repository.metadata
    session.answer({"metadata": pairs}, *(((key, "cyan"), " = ", text) for key, text in sorted(pairs.items())))
    if not pairs:
        session.note("No metadata.")


@command(app, "adopt", example="repo adopt lakefs://flights --yes", asks=True)
def adopt(session: Session, uri: RepositoryUri) -> None:
    """Make this catalog the one that may collect a repository's garbage, in place of another one.

    Use it for a catalog that was restored or moved. The other catalog stops at its next mark or sweep.
    """
    repository = session.repository(uri)
    namespace = repository.storage_namespace
    owner, ours = repository.owner()
    if not ours:
        session.confirm(f"Take {namespace} over?", lambda: _show_owner(session, namespace, owner))
    done = repository.adopt()
    result = "was this catalog's already" if ours else f"is this catalog's now (epoch {done.owner.epoch})"
    before = [] if ours or done.before is None else [["It was the catalog's at ", done.before.identity.shown]]
    session.answer(done, ["The right to delete in ", namespace, f" {result}."], *before)


@command(app, "delete", example="repo delete lakefs://flights", asks=True)
def delete(session: Session, uri: RepositoryUri) -> None:
    """Forget a repository: its branches, tags and history. Its objects stay where they are."""
    repository = session.repository(uri)
    followed = session.lake.catalog.mirrors.find(repository.id)
    newest = next(iter(repository.reflog(limit=1)), None)
    question = f"Delete repository {repository.id!r}?"
    asked = session.confirm(question, lambda: _show_deletion(session, repository, followed))
    session.lake.delete_repository(repository.id, seen=newest.sequence if asked and newest else None)
    namespace = repository.storage_namespace
    session.answer(
        repository.record,
        ["Repository ", (f"lakefs://{repository.id}", "green"), " deleted; its objects stay in ", namespace],
    )
    if followed is not None:
        from lakeops.cli.mirror import note_untold

        note_untold(session, "was not told, as `lakeops mirror delete` does", followed.registration)


def _show_owner(session: Session, namespace: str, owner: Owner | None) -> None:
    if owner is None:
        session.message("In ", namespace, " no catalog may delete now: there is no owner record.")
        return
    session.message("In ", namespace, " another catalog may delete now:")
    session.message("  ", (owner.identity.shown, "red"), f", repository {owner.repository}, {moment(owner.at)}")
    session.message("It will no longer collect garbage there. Go on if that catalog is gone, or if it is the copy.")


def _show_deletion(session: Session, repository: Repository, followed: MirrorRecord | None) -> None:
    branches = counted(sum(1 for _ in repository.branches()), "branch")
    tags = counted(sum(1 for _ in repository.tags()), "tag")
    session.message("This forgets ", (f"lakefs://{repository.id}", "red"), f" with {branches}, {tags} and all history.")
    session.message("Objects stay in ", repository.storage_namespace)
    if followed is not None:
        session.message("It is a mirror; `lakeops mirror delete` also lets its source know.")


HookName = Annotated[str, argument("HOOK", "An entry point in the group lakeops.hooks.")]

hook_group: typer.Typer = typer.Typer(help="Set the code that runs before or after changes.", add_completion=False)


@command(hook_group, "set", example="hook set lakefs://flights schema-check --on commit --on merge --ref main")
def set_hook(
    session: Session,
    uri: RepositoryUri,
    name: HookName,
    when: Annotated[
        str, value("--when", "WHEN", "before or after the change. A hook can stop a change only before it.")
    ] = BEFORE,
    on: Annotated[
        list[str] | None, value("--on", "ACTION", f"Which changes: {', '.join(ACTIONS)}. All by default.")
    ] = None,
    ref: Annotated[str, value("--ref", "PATTERN", "Which branches and tags: a name, or a glob.")] = "*",
    seconds: Annotated[
        int, value("--seconds", "N", "The time limit. When a hook takes longer, the change is refused.")
    ] = SECONDS,
) -> None:
    """Set a hook: code that every process runs before or after changes. Replaces the hook of that name."""
    hook = session.repository(uri).set_hook(name, when=when, actions=on or (), pattern=ref, seconds=seconds)
    what = ", ".join(hook.actions) or "every change"
    session.answer(hook, ["Hook ", (name, "green"), f" runs {when} {what} of ", hook.pattern])


@command(hook_group, "list", example="hook list lakefs://flights", lists="prefix after amount")
def list_hooks(session: Session, uri: RepositoryUri) -> None:
    """List the hooks of a repository."""

    def row(hook: Hook) -> tuple[Styled, ...]:
        beside = ", ".join(hook.actions) or "everything"
        return ((hook.name, "cyan"), hook.when, beside, hook.pattern, str(hook.seconds))

    found = session.part(session.repository(uri).hooks(), "name")
    session.table(found, ("Hook", "When", "Beside", "Refs", "Seconds"), row)


@command(hook_group, "remove", example="hook remove lakefs://flights schema-check")
def remove_hook(session: Session, uri: RepositoryUri, name: HookName) -> None:
    """Remove a hook, so that it no longer runs."""
    session.repository(uri).remove_hook(name)
    session.answer({"name": name}, ["Hook ", (name, "green"), " no longer runs"])
