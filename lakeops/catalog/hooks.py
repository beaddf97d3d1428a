"""CatalogPart of hooks, and the check that no ref changes past one.

* ``set_hook`` leaves a hook on record, in place of one of its name. Writers who did not know of it are done. Recovery:
  repeat it.
* ``remove_hook`` leaves the hook off the record. Recovery: look, repeat.
* ``check_hooks`` is part of every transition that changes a ref: it refuses a caller who does not know the hooks that
  run beside the change. They are in the repository's row, which those transitions have locked, so nothing more is read.
"""

from __future__ import annotations

from sqlalchemy import Connection, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import CatalogPart, check_writable, lock_repository
from lakeops.catalog.rows import AnyRow, hooks_of
from lakeops.catalog.tables import REPOSITORY
from lakeops.model.errors import (
    NotFound,
    PreconditionFailed,
)
from lakeops.model.records import Hook

Hooks = frozenset[Hook]


class HookRecords(CatalogPart):
    """What runs beside changes of refs."""

    def set_hook(self, repository_id: str, hook: Hook) -> None:
        """Let a hook run beside changes of refs from now on, in place of one of its name."""

        def work(conn: Connection) -> None:
            # Exclusive, so that no transition that did not know the hook is still under way afterwards.
            row = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, row, action="set-hook")
            known = {one.name: one for one in hooks_of(row)}
            before = known.get(hook.name)
            if before != hook:
                _write(conn, repository_id, {**known, hook.name: hook})
                self._record(conn, repository_id, "add-hook", "hook", hook.name, _spell(before), _spell(hook))

        self.database.write(work, settle=run_again)

    def remove_hook(self, repository_id: str, name: str) -> None:
        """Let a hook run no longer. Raises ``NotFound``."""

        def work(conn: Connection) -> None:
            row = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, row, action="remove-hook")
            known = {one.name: one for one in hooks_of(row)}
            before = known.pop(name, None)
            if before is None:
                raise NotFound(f"repository {repository_id!r} has no hook {name!r}")
            _write(conn, repository_id, known)
            self._record(conn, repository_id, "remove-hook", "hook", name, _spell(before))

        self.database.write(work)


def check_hooks(repository: AnyRow, action: str, ref: str, known: Hooks) -> None:
    """Refuse a caller who does not know all hooks of this change. Raises ``PreconditionFailed`` (``hooks_changed``)."""
    if repository.hooks == []:
        return
    missing = sorted(hook.name for hook in hooks_of(repository) if hook.concerns(action, ref) and hook not in known)
    if missing:
        raise PreconditionFailed(
            f"hook {missing[0]!r} of repository {repository.id!r} runs beside every {action} of {ref!r}, and this "
            "caller has not run it; nothing was changed",
            kind="hooks_changed",
        )


def _write(conn: Connection, repository_id: str, hooks: dict[str, Hook]) -> None:
    values = [hooks[name].to_json() for name in sorted(hooks)]
    conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(hooks=values))


def _spell(hook: Hook | None) -> str | None:
    if hook is None:
        return None
    return f"{hook.when} {' '.join(hook.actions) or 'every change'} of {hook.pattern}, {hook.seconds} s"
