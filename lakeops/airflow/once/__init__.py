"""Doing a verb once for a task, however often the task runs.

Every function here may be called again after it was killed anywhere, and finds what the earlier call did:

* the same work under the same key is done once; a second call returns the first one's result;
* a task that is cleared after its input changed does have new work. It goes under the task's next key, so it is
  published too, and also once. Leaving it staged on a branch that is about to be dropped would lose it silently.

What needs no key (deletions, protections, uploads) is the same when it is done twice; here a thing that is gone
already, or there already as it was asked for, is no error.
"""

from lakeops.airflow.once.commits import (
    Step,
    cherry_pick,
    commit,
    contains,
    create_branch,
    create_repository,
    create_tag,
    delete_branch,
    delete_repository,
    delete_tag,
    import_objects,
    merge,
    revert,
    unprotect,
    unpublished,
)

__all__ = [
    "Step",
    "cherry_pick",
    "commit",
    "contains",
    "create_branch",
    "create_repository",
    "create_tag",
    "delete_branch",
    "delete_repository",
    "delete_tag",
    "import_objects",
    "merge",
    "revert",
    "unprotect",
    "unpublished",
]
