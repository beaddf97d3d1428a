"""Operators of mirrors: see what the source shows, and show what has arrived.

Both may run at any time, beside each other and again: see ``lakeops.ops.mirror.sync``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakeops.airflow.assets import COMMITS, announce
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.model.errors import InvalidInput, ReplicaMissing
from lakeops.model.mirrors import RefKind, RefName
from lakeops.model.sources import SourceKind

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Lake, Mirror
    from lakeops.model.mirrors import RefStatus


class LakeopsMirrorDiscoverOperator(LakeopsOperator):
    """Records what a mirror's source shows and copies commit records; returns the mirror's status, and ``waiting``.

    ``waiting`` has an item for each ref that waits for replication: ``repo``, and ``branch`` or ``tag`` (the other is
    null), as ``LakeopsReplicationSensor`` and ``LakeopsMirrorPromoteOperator`` take them.

    Args:
        kwargs: see ``LakeopsOperator``; ``repo`` is the mirror.
    """

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:  # noqa: ARG002 - nothing is told of it
        """What is waited for."""
        mirror = lake.mirror(name)
        with source_of(mirror) as source:
            status = mirror.discover(source)
        refs = (*status.branches.values(), *status.tags.values())
        waiting = [{"repo": name, "branch": None, "tag": None, str(ref.kind): ref.id} for ref in refs if ref.candidate]
        for ref in refs:
            self.log.info("%s", _told(ref))
        return {**status.to_json(), "waiting": waiting}


class LakeopsMirrorPromoteOperator(LakeopsOperator):
    """Shows what has arrived of one ref of a mirror, or of all; returns the mirror's status.

    It fails for a ref of which nothing arrives any more (see ``lakeops mirror patience``) or that arrived damaged; what
    can be shown of others has been shown by then.

    A branch that moved sends an event to the assets among the outlets, with what changed since the head before, and the
    ref's status as ``mirror``.

    Args:
        branch: the branch.
        tag: a tag in place of a branch. Without either all refs are looked at.
        commit_id: what the sensor found; a try that comes after it was shown tells of it again.
        kwargs: see ``LakeopsOperator``; ``repo`` is the mirror.
    """

    template_fields: Sequence[str] = (*LakeopsOperator.template_fields, "branch", "tag", "commit_id")

    def __init__(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        commit_id: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        kwargs.setdefault("outlets", [COMMITS])
        super().__init__(**kwargs)
        self.branch = branch
        self.tag = tag
        self.commit_id = commit_id

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The status after the pass."""
        if self.branch and self.tag:
            raise InvalidInput("promote a branch or a tag, not both")
        mirror = lake.mirror(name)
        before = mirror.status()
        only = None
        if self.branch or self.tag:
            only = [RefName(RefKind.BRANCH if self.branch else RefKind.TAG, self.branch or self.tag or "")]
        with source_of(mirror) as source:
            status = mirror.sync(source, only=only)
        for branch, ref in status.branches.items():
            shown = before[branch].promoted if branch in before else None
            again = branch == self.branch and ref.promoted == self.commit_id
            if ref.promoted is not None and (ref.promoted != shown or again):
                self.log.info("%s", _told(ref))
                since = shown if shown != ref.promoted else None
                announce(context, mirror, branch, ref.promoted, since=since, more={"mirror": ref.to_json()})
        for ref in (*status.branches.values(), *status.tags.values()):
            if ref.stalled and (only is None or RefName(ref.kind, ref.id) in only):
                raise ReplicaMissing(f"{ref.kind} {ref.id!r} of mirror {name!r} waits for {ref.awaited}")
        return status.to_json()


@contextmanager
def source_of(mirror: Mirror) -> Iterator[Lake | None]:
    """The source's lake where the mirror names it by an Airflow connection; None where it can be found without."""
    reference = mirror.configuration.source
    if reference.kind is not SourceKind.CONNECTION:
        yield None
        return
    with LakeopsHook(reference.place).get_conn() as lake:
        yield lake


def _told(ref: RefStatus) -> str:
    shown = "nothing" if ref.promoted is None else ref.promoted[:16]
    if ref.candidate is None:
        return f"{ref.kind} {ref.id} shows {shown}"
    return (
        f"{ref.kind} {ref.id} shows {shown} and waits for {ref.candidate[:16]}: {ref.missing_objects:,} objects were "
        f"missing at the last look, {ref.lag_seconds:,} s behind"
    )
