"""Operators of mirrors: discover what the source has, and promote what has arrived.

Both may run at any time, at the same time and again: see ``lakeops.ops.mirror.sync``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakeops.airflow.hook import source_of
from lakeops.airflow.operators.base import LakeopsOperator
from lakeops.model.errors import InvalidInput, RefNotFound, ReplicaMissing
from lakeops.model.mirrors import RefKind, RefName
from lakeops.model.names import check_branch, check_tag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Lake
    from lakeops.model.mirrors import MirrorStatus, RefStatus


class LakeopsMirrorDiscoverOperator(LakeopsOperator):
    """Records the refs of a mirror's source and copies commit records; returns the mirror's status, and ``waiting``.

    ``waiting`` has an item for each ref that waits for replication: ``repo``, and ``branch`` or ``tag`` (the other is
    null), as ``LakeopsReplicationSensor`` and ``LakeopsMirrorPromoteOperator`` take them.

    Args:
        kwargs: see ``LakeopsOperator``; ``repo`` is the mirror.
    """

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The status, and the refs that wait."""
        mirror = lake.mirror(name)
        with source_of(mirror) as source:
            status = mirror.discover(source)
        refs = (*status.branches.values(), *status.tags.values())
        waiting = [{"repo": name, "branch": None, "tag": None, str(ref.kind): ref.id} for ref in refs if ref.candidate]
        for ref in refs:
            self.log.info("%s", _described(ref))
        return {**status.to_json(), "waiting": waiting}


class LakeopsMirrorPromoteOperator(LakeopsOperator):
    """Promotes one ref of a mirror to what has arrived, or all refs; returns the mirror's status.

    The task fails for a ref that arrived damaged, or of which nothing arrives any more (see ``lakeops mirror
    patience``). The other refs are promoted before it fails.

    A branch that moved makes an event for the assets among the outlets. The event says what changed since the head
    before, and has the ref's status as ``mirror``.

    Args:
        branch: the branch.
        tag: a tag in place of a branch. Without either all refs are promoted.
        commit_id: what the sensor found. A try that comes after the commit was promoted announces it again.
        kwargs: see ``LakeopsOperator``; ``repo`` is the mirror.
    """

    announces = True

    branch: str | None = None
    tag: str | None = None
    commit_id: str | None = None

    def work(self, lake: Lake, name: str, context: Context) -> dict[str, Any]:
        """The status after the pass."""
        mirror = lake.mirror(name)
        before = mirror.status()
        only = self._only()
        with source_of(mirror) as source:
            status = mirror.sync(source, only=only)
        self._require_known(name, status)
        for branch, ref in status.branches.items():
            shown = before[branch].promoted if branch in before else None
            again = branch == self.branch and ref.promoted == self.commit_id
            if ref.promoted is not None and (ref.promoted != shown or again):
                self.log.info("%s", _described(ref))
                since = shown if shown != ref.promoted else None
                head = mirror.ref(ref.promoted).commit.to_json()
                self.announce(context, mirror, branch, head, since=since, more={"mirror": ref.to_json()})
        for ref in (*status.branches.values(), *status.tags.values()):
            if ref.stalled and (only is None or RefName(ref.kind, ref.id) in only):
                raise ReplicaMissing(f"{ref.kind} {ref.id!r} of mirror {name!r} waits for {ref.awaited}")
        return status.to_json()

    def _only(self) -> list[RefName] | None:
        """The one ref that was asked for; None for all of them."""
        if self.branch and self.tag:
            raise InvalidInput("branch and tag: promote a branch or a tag, not both")
        if self.branch:
            return [RefName(RefKind.BRANCH, check_branch(self.branch))]
        return [RefName(RefKind.TAG, check_tag(self.tag))] if self.tag else None

    def _require_known(self, name: str, status: MirrorStatus) -> None:
        """Refuse a ref that neither side has. One that the sensor has found was deleted at the source meanwhile."""
        kind, ref = ("branch", self.branch) if self.branch else ("tag", self.tag)
        if not ref or ref in (status.branches if self.branch else status.tags):
            return
        said = f"neither mirror {name!r} nor its source has a {kind} {ref!r}"
        if not self.commit_id:
            raise RefNotFound(said)
        self.log.info("%s any more", said)


def _described(ref: RefStatus) -> str:
    shown = "nothing" if ref.promoted is None else ref.promoted[:16]
    if ref.candidate is None:
        return f"{ref.kind} {ref.id} shows {shown}"
    return (
        f"{ref.kind} {ref.id} shows {shown} and waits for {ref.candidate[:16]}: {ref.missing_objects:,} objects were "
        f"missing at the last check, {ref.lag_seconds:,} s behind"
    )
