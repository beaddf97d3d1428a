"""Findings of ``fsck``: the table of their kinds, each with a severity and the advice for it.

A check names a kind, and severity and advice follow from it. Kinds are stable: programs match on them. ``docs/fsck.md``
has the same table for people.

* An *error* is damage: something that a live version needs is missing, altered or contradicts itself.
* A *warning* is no loss, but not as lakeops leaves things. Somebody should look.
* An *information* is normal in a healthy repository: garbage, uploads that were given up, files of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from lakeops.model.encoding import JsonRecord


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: its severity, and the advice for it."""

    severity: Severity
    advice: str


@dataclass(frozen=True, slots=True)
class Finding(JsonRecord):
    """A finding of ``fsck``.

    ``kind`` is a stable word, ``where`` the place: ``branch main``, ``commit <id>``, a file's key, ``object <path>``.
    ``message`` says in one line what is wrong, ``advice`` what to do. ``commits`` names a few of the ``commit_count``
    live commits that are affected. ``count`` and ``size_bytes`` are of the files or rows that the finding sums up.
    """

    kind: str
    severity: Severity
    where: str
    message: str
    advice: str
    commits: tuple[str, ...] = ()
    commit_count: int = 0
    count: int = 1
    size_bytes: int = 0


NAMED = 3
"""How many of the affected commits a finding names."""


def found(
    kind: str, where: str, message: str, *, commits: Sequence[str] = (), count: int = 1, size_bytes: int = 0
) -> Finding:
    """A finding of a kind of ``KINDS``. ``commits`` are all the affected ones, of which a few are named."""
    known = KINDS[kind]
    named = tuple(commits[:NAMED])
    return Finding(kind, known.severity, where, message, known.advice, named, len(commits), count, size_bytes)


_error, _warning, _info = (partial(Kind, severity) for severity in Severity)

_CATALOG = "restore the catalog from its backup"
_FILE = "restore the file from a version of the bucket, a backup or a mirror"
_SOFTWARE = (
    "restore the catalog and the bucket to an earlier state, and report how this came about: lakeops never writes it"
)

KINDS: dict[str, Kind] = {
    # the repository
    "default_branch_missing": _error(f"create the branch again at its last commit in the reflog, or {_CATALOG}"),
    "split_invalid": _error(f"{_CATALOG}: ranges cannot be cut any more"),
    "claim_missing": _info("nothing to do: the catalog decides; the file only keeps other lakes out"),
    "claim_mismatch": _error("find out which repository owns the namespace, and stop garbage collection until then"),
    "owner_missing": _warning("garbage collection does not run until `lakeops repo adopt` has written it"),
    "owner_mismatch": _warning(
        "leave collection to the other catalog; if this one takes its place, run `lakeops repo adopt`"
    ),
    "namespace_unreadable": _error("make sure that the namespace exists and may be listed, and run fsck again"),
    # rows
    "row_unreadable": _error(_CATALOG),
    # refs
    "reflog_broken": _error(f"{_CATALOG}: moves of the ref were removed, added or altered"),
    "reflog_mismatch": _error(f"{_CATALOG}, or set the ref to where the reflog says it was"),
    "branch_target_missing": _error(f"{_CATALOG}; the reflog tells where the branch was before"),
    "branch_target_expired": _error(
        "set it to a live commit with `lakeops branch move BRANCH COMMIT --force`; find out who marked this one expired"
    ),
    "tag_target_missing": _error(f"{_CATALOG}, or delete the tag"),
    "tag_target_expired": _error(
        "delete the tag, or set it to a live commit with `lakeops tag move`; find out who marked this one expired"
    ),
    "ref_name_invalid": _warning("copy it to a ref with a valid name and delete it"),
    # commits
    "commit_unreadable": _error(_CATALOG),
    "commit_id_mismatch": _error(f"{_CATALOG}: the record was altered after it was written"),
    "commit_parent_missing": _error(f"{_CATALOG}: history ends here"),
    "commit_generation_wrong": _error(f"{_CATALOG}: merge bases and logs may be wrong"),
    "commit_first_parent_wrong": _error(f"{_CATALOG}: logs and retention follow the wrong parent"),
    "root_missing": _error(_CATALOG),
    "roots_several": _error(f"{_CATALOG}: a repository begins with one commit"),
    "idempotency_key_dangling": _warning("do not repeat the call under this key; use a new one"),
    # metaranges
    "metarange_pointer_invalid": _error(f"{_CATALOG}: the commit does not name its metarange properly"),
    "metarange_missing": _error(_FILE),
    "metarange_damaged": _error(_FILE),
    "metarange_unreadable": _error("find out why the store refuses, and run fsck again"),
    "metarange_row_invalid": _error(_SOFTWARE),
    "metarange_order": _error(_SOFTWARE),
    "changes_mismatch": _error(f"merge, revert or compare none of these commits, and {_SOFTWARE}"),
    # ranges
    "range_missing": _error(_FILE),
    "range_damaged": _error(_FILE),
    "range_unreadable": _error("find out why the store refuses, and run fsck again"),
    "range_summary_mismatch": _error(_SOFTWARE),
    "range_order": _error(_SOFTWARE),
    "range_boundary": _error(_SOFTWARE),
    "entry_digest_mismatch": _error(_SOFTWARE),
    "entry_invalid": _error(_SOFTWARE),
    "address_invalid": _error(_SOFTWARE),
    "address_not_relative": _warning(
        "nothing to do at once: reads work; stage the object again by its relative address"
    ),
    # staging
    "staging_token_shared": _error(f"commit neither branch, and {_CATALOG}: they show each other's changes"),
    "staging_token_retired": _error(f"{_CATALOG}: the next commit removes the rows of this token"),
    "staged_row_invalid": _error("reset this path of the branch and stage it again"),
    "staged_rows_orphaned": _warning("nothing reads these rows; look in them for lost changes before you delete them"),
    "staged_rows_retired": _info("nothing to do: the next commit or reset removes them"),
    "upload_overdue": _info("nothing to do: it cannot be linked any more, and the next upload removes its record"),
    # objects
    "object_missing": _error("restore the object from a version of the bucket, a backup or a mirror, or write it anew"),
    "object_size_mismatch": _error("restore the object from a version of the bucket, a backup or a mirror"),
    "object_checksum_mismatch": _error("restore the object from a version of the bucket, a backup or a mirror"),
    "object_changed": _warning("compare it with a copy: its ETag or time differs, and fsck cannot compare contents"),
    "object_unreadable": _error("find out why the store refuses, and run fsck again"),
    # files that nothing needs
    "unreferenced_objects": _info("garbage collection deletes them once they are old enough"),
    "unreferenced_ranges": _info("garbage collection deletes them once they are old enough"),
    "unreferenced_metaranges": _info("garbage collection deletes them once they are old enough"),
    "unreferenced_tasks": _info("garbage collection deletes them once they are old enough"),
    "leftovers_unknown": _info("repair the errors first, and do not run garbage collection until then"),
    "stray_files": _info("lakeops leaves them alone; move them elsewhere if they should not be here"),
}
"""Every kind of finding."""
