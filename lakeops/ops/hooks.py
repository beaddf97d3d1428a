"""Running hooks beside changes of refs.

Which hooks run is in the repository's row, so it holds for every process. A caller runs the hooks that it knows and
names them in the transition, which refuses a caller who does not know all of them. A hook is code in this process:
whoever writes SQL goes past it. What must hold for them too is a protection or a required check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Thread
from typing import TypeVar

from lakeops.catalog.guards import Hooks
from lakeops.model.errors import LakeopsError, NotAsSeen, PreconditionFailed
from lakeops.model.names import check_asked
from lakeops.model.protection import ACTIONS, AFTER, BEFORE, GROUP, REFS_DUMP, SECONDS, Hook, HookEvent, check_hook
from lakeops.ops.context import Context

T = TypeVar("T")
Call = Callable[[HookEvent], object]

_TRIES = 8
_log = logging.getLogger(__name__)


def set_hook(
    ctx: Context,
    name: str,
    *,
    when: str = BEFORE,
    actions: Sequence[str] = (),
    pattern: str = "*",
    seconds: int = SECONDS,
) -> Hook:
    """Let a hook run beside changes of branches and tags, in every process, in place of one of its name.

    Args:
        name: the entry point's name in the group ``lakeops.hooks``.
        when: ``before``: what it raises stops the change, and a process that cannot load it changes nothing.
            ``after``: what it raises is logged.
        actions: the changes beside which it runs: ``commit``, ``merge``, ``revert``, ``cherry-pick``, ``import``,
            ``create-branch``, ``move-branch``, ``delete-branch``, ``create-tag``, ``move-tag``, ``delete-tag``. All of
            them when left out.
        pattern: a glob pattern of the branches and tags.
        seconds: how long it may take.

    Raises:
        InvalidInput: one of the arguments is not valid.
        PreconditionFailed: ``hook_missing``: it cannot be loaded here, and would stop the changes of this process.
        CatalogError: ``permission_denied``: the database login is no maintainer's.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes.
    """
    given = check_hook(Hook(name, when, tuple(actions), pattern, seconds))
    _load(given)
    hook = replace(given, actions=tuple(one for one in ACTIONS if one in given.actions))
    ctx.catalog.refs.set_hook(ctx.repository_id, hook)
    return hook


def remove_hook(ctx: Context, name: str) -> None:
    """Let a hook run no longer. Raises ``NotFound``."""
    ctx.catalog.refs.remove_hook(ctx.repository_id, check_asked(name, "a hook"))


def hooks(ctx: Context) -> list[Hook]:
    """The hooks that run beside changes, by name."""
    return sorted(hook for hook in ctx.catalog.repositories.get(ctx.repository_id).hooks if hook != REFS_DUMP)


def automatic(ctx: Context, on: bool = True) -> None:
    """Add each change of a branch or tag to the dump as soon as it is made, or no longer. This holds for every process.

    A dump that fails is logged and made up for by the next one. A sweep writes one first, and deletes nothing when that
    fails: a dump never refers to what a sweep took.
    """
    if on:
        ctx.catalog.refs.set_hook(ctx.repository_id, REFS_DUMP)
    elif REFS_DUMP in ctx.catalog.repositories.get(ctx.repository_id).hooks:
        ctx.catalog.refs.remove_hook(ctx.repository_id, REFS_DUMP.name)


def run_with_hooks(
    ctx: Context,
    event: HookEvent,
    change: Callable[[Hooks, str | None], T],
    *,
    old: Callable[[], str] | None = None,
    after: Callable[[T], str | None] | None = None,
) -> T:
    """Call ``change`` with the hooks run before and after it that concern it, and return what it returns.

    Args:
        change: makes the change. Takes the hooks that this caller runs, and the commit that they were told of. Raises
            ``NotAsSeen`` when the ref points to another one: hooks are asked again for that.
        old: reads the commit that the ref points to before, for the event of hooks.
        after: the commit that the ref points to now. None when nothing was changed. As in ``event`` when left out.

    Raises ``PreconditionFailed``: ``hook_refused`` (a hook stopped it), ``hook_missing`` (one cannot be loaded here),
    ``hooks_changed`` (hooks were set again and again meanwhile); and what ``change`` raises.
    """
    run, tries = set[Hook](), _TRIES
    # Read anew where the handle knows some: one that was removed since it was opened refuses nothing.
    known = ctx.repository.hooks and ctx.catalog.repositories.get(ctx.repository_id).hooks
    while True:
        mine = frozenset(hook for hook in known if hook.concerns(event.action, event.ref))
        if mine and old is not None and event.old != (at := old()):
            event = replace(event, old=at)
            run.clear()  # they agreed to another commit
        for hook in sorted(mine - run):
            if hook.when == BEFORE:
                _run(hook, event)
                run.add(hook)
        try:
            done = change(mine, event.old if mine else None)
        except PreconditionFailed as error:
            tries -= 1
            moved = mine and isinstance(error, NotAsSeen) and old is not None and event.old != old()
            if not tries or not (moved or error.kind == "hooks_changed"):
                raise
            known = ctx.catalog.repositories.get(ctx.repository_id).hooks
            continue
        new = event.new if after is None or not mine else after(done)
        for hook in sorted(hook for hook in mine if hook.when == AFTER and (new is not None or after is None)):
            try:
                if hook == REFS_DUMP:
                    from lakeops.ops.refs.dump import dump

                    dump(ctx)
                else:
                    _run(hook, replace(event, new=new))
            except (LakeopsError, OSError) as error:  # a dump begins as local files
                failed = "%s of %r is done, and hook %r after it failed: %s"
                _log.warning(failed, event.action, event.ref, hook.name, error)
        return done


def _load(hook: Hook) -> Call:
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=GROUP, name=hook.name))
    reason = "no installed package has an entry point of this name in the group lakeops.hooks"
    if found:
        try:
            call: Call = found[0].load()
            return call
        except Exception as error:  # noqa: BLE001 - it is somebody else's code
            reason = f"{type(error).__name__}: {error}"
    raise PreconditionFailed(
        f"hook {hook.name!r} cannot be loaded here ({reason}); install it, or, if it is set, let a maintainer remove "
        "it with `lakeops hook remove`",
        kind="hook_missing",
    )


def _run(hook: Hook, event: HookEvent) -> None:
    call, failures = _load(hook), list[BaseException]()

    def work() -> None:
        try:
            call(event)
        except BaseException as error:  # noqa: BLE001 - it is somebody else's code
            failures.append(error)

    thread = Thread(target=work, name=f"hook {hook.name}", daemon=True)
    thread.start()
    thread.join(hook.seconds)
    if thread.is_alive():
        raise PreconditionFailed(
            f"hook {hook.name!r} of {event.action} did not end within {hook.seconds} s; its time is up",
            kind="hook_refused",
        )
    if failures:
        message = failures[0].message if isinstance(failures[0], LakeopsError) else str(failures[0])
        words = message or type(failures[0]).__name__
        raise PreconditionFailed(
            f"hook {hook.name!r} stopped {event.action} of {event.ref!r}: {words}", kind="hook_refused"
        )
