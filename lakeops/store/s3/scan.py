"""Every object below a prefix, in byte order, with several listings under way.

One listing goes a page after another. So a bucket is listed by its folders: the first levels are asked for with a
delimiter, one request a page, until there are enough folders to list beside each other. What is left of a folder after
a page is split into partitions, no more than there are idle threads. A partition that holds nothing costs a request,
and one that holds many pages is split again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from lakeops.model.errors import InvalidInput, InvalidPath, StoreError, Transient
from lakeops.model.sanitising import excerpt
from lakeops.store.base import Listing
from lakeops.store.bucket import object_name
from lakeops.store.listing import LEVELS, Found, ParallelListing, folder_borders, split_points
from lakeops.store.s3.client import status_of, xml_part

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, ObjectTypeDef

_THREADS = 16
_ENOUGH = 16
"""Folders on a page that keep all threads busy. Fewer are taken apart once more."""
_POINTS = 64
"""Parts that a flat folder is divided into at most, on guesses of which the first ones are narrow."""


def scan(
    client: S3Client,
    bucket: str,
    root: str,
    under: str = "",
    after: str = "",
    until: str = "",
    *,
    skip_special: bool,
    moving: bool = False,
) -> Iterator[Listing]:
    """All objects whose names begin with ``root`` (empty, or ending in a slash). Keys are what follows it.

    ``under`` is a folder below the root that holds all that is wanted. Names come behind ``after``, up to ``until``.
    """
    scanning = _S3Scan(client, bucket, root, skip_special, moving, after)
    part = _Partition(root + under, xml_part(after), until or None)
    last = ""
    for listing in scanning.parallel.run(
        partial(scanning.partition, part) if after or until else partial(scanning.level, root + under, 1)
    ):
        if listing.keys[0] <= last:
            raise StoreError(f"bucket {bucket!r} does not list names in byte order; use another server")
        last = listing.keys[-1]
        yield listing


def borders(client: S3Client, bucket: str, root: str, after: str, count: int) -> list[str]:
    """About ``count`` ascending names behind ``after`` that part what lies below ``root``: see ``ObjectStore.borders``.

    Of a flat folder of many pages they are points.
    """
    scanning = _S3Scan(client, bucket, root, skip_special=True, moving=True)
    return folder_borders(scanning.parts, root, after, count)


@dataclass(frozen=True)
class _Partition:
    """The names that begin with ``prefix``, come after ``after``, and not after ``until``.

    Attributes:
        token: what the server gave to go on with, in place of ``after``.
        width: how many points the rest is split at after the next page. A short folder asks for little in vain.
        empty: nothing was found yet, though the folder's name was listed.
    """

    prefix: str
    after: str = ""
    until: str | None = None
    token: str = ""
    width: int = 4
    empty: bool = False


@dataclass
class _S3Scan:
    client: S3Client
    bucket: str
    root: str
    skip_special: bool
    moving: bool
    after: str = ""
    parallel: ParallelListing = field(default_factory=lambda: ParallelListing(_THREADS))

    def level(self, prefix: str, depth: int, token: str = "") -> Sequence[Found]:
        """One page of a folder: its own objects, and a step for each folder in it."""
        answer = self._page(prefix, token, Delimiter="/")
        folders, objects = self._folders(prefix, answer), self._wanted_objects(prefix, answer)
        nothing = not token and not folders and not objects and not answer["IsTruncated"]
        if nothing and depth > 1 and not self.moving:
            raise self._bucket_changed(prefix)
        apart = depth < LEVELS and len(folders) < _ENOUGH and not answer["IsTruncated"]
        found: list[Found] = []
        at = 0
        for folder in folders:
            before = at
            while at < len(objects) and objects[at]["Key"] < folder:
                at += 1
            found += self._listing(objects[before:at])
            inside = partial(self.partition, _Partition(folder, empty=True))
            found.append(partial(self.level, folder, depth + 1) if apart else inside)
        found += self._listing(objects[at:])
        last = objects[-1]["Key"] if objects else ""
        if answer["IsTruncated"] and last and not folders and xml_part(last) == last:
            found += self._split(_Partition(prefix, after=last), objects, "")
        elif answer["IsTruncated"]:
            found.append(partial(self.level, prefix, depth, answer["NextContinuationToken"]))
        return found

    def partition(self, which: _Partition) -> Sequence[Found]:
        """One page of a partition, and steps for what is left of it."""
        after = {"StartAfter": which.after} if which.after and not which.token else {}
        answer = self._page(which.prefix, which.token, **after)
        objects = self._wanted_objects(which.prefix, answer)
        empty = which.empty and not objects
        if empty and not answer["IsTruncated"] and not self.moving:
            raise self._bucket_changed(which.prefix)
        inside = [item for item in objects if which.until is None or item["Key"] <= which.until]
        found: list[Found] = [*self._listing(inside)]
        if answer["IsTruncated"] and len(inside) == len(objects):
            last = inside[-1]["Key"] if inside else which.after
            rest = replace(which, after=last, width=2 * which.width, empty=empty)
            found += self._split(rest, inside, answer["NextContinuationToken"])
        return found

    def parts(self, prefix: str) -> list[str]:
        """The folders in a folder; where it has none, and many pages, points in it."""
        answer = self._page(prefix, "", Delimiter="/")
        folders = self._folders(prefix, answer)
        if not folders and answer["IsTruncated"]:
            names = [item["Key"] for item in self._wanted_objects(prefix, answer)]
            return split_points(names, None, start=len(prefix), count=_POINTS)
        while answer["IsTruncated"] and answer.get("CommonPrefixes"):
            answer = self._page(prefix, answer["NextContinuationToken"], Delimiter="/")
            folders += self._folders(prefix, answer)
        return folders

    def _split(self, rest: _Partition, page: Sequence[ObjectTypeDef], token: str) -> Iterator[Found]:
        """Steps for what is behind a page. A token is the server's own way to go on. It takes the place of a name."""
        names, after, count = [item["Key"] for item in page], rest.after, min(rest.width, self.parallel.idle)
        for point in split_points(names, rest.until, start=len(rest.prefix), count=count):
            if xml_part(point) == point:
                yield partial(self.partition, replace(rest, after=after, until=point, token=token))
                after, token = point, ""
        yield partial(self.partition, replace(rest, after=after, token=token))

    def _page(self, prefix: str, token: str, **more: Any) -> ListObjectsV2OutputTypeDef:  # noqa: ANN401 - boto3's parameters
        if token:
            more["ContinuationToken"] = token
        return self.client.list_objects_v2(Bucket=self.bucket, Prefix=xml_part(prefix), **more)

    def _folders(self, prefix: str, answer: ListObjectsV2OutputTypeDef) -> list[str]:
        folders = [item["Prefix"] for item in answer.get("CommonPrefixes", ())]
        return [folder for folder in folders if folder.startswith(prefix) and folder != prefix]

    def _wanted_objects(self, prefix: str, answer: ListObjectsV2OutputTypeDef) -> list[ObjectTypeDef]:
        """The page's objects below the prefix, behind ``after``. The root's own name has no key."""
        start = max(self.root, self.after)
        return [one for one in answer.get("Contents", ()) if one["Key"].startswith(prefix) and one["Key"] > start]

    def _listing(self, objects: Sequence[ObjectTypeDef]) -> Iterator[Listing]:
        start = len(self.root)
        kept = [item for item in objects if self._fits(item["Key"])]
        if kept:
            names = [item["Key"] for item in kept]
            if any(left >= right for left, right in pairwise(names)):
                raise StoreError(f"bucket {self.bucket!r} does not list names in byte order; use another server")
            yield Listing(
                [name[start:] for name in names],
                [item["Size"] for item in kept],
                [int(item["LastModified"].timestamp()) for item in kept],
                [item["ETag"].strip('"') for item in kept],
            )

    def _fits(self, name: str) -> bool:
        """Whether an object can be read back by this name. Raises ``InvalidInput`` unless such ones are skipped."""
        if ".." not in name and "\ufffd" not in name:
            return True
        try:
            object_name("", name)
            if "\ufffd" in name:  # what stands for bytes that are not UTF-8 may also be part of a name
                self.client.head_object(Bucket=self.bucket, Key=name)
        except (InvalidPath, ClientError) as error:
            if isinstance(error, ClientError) and status_of(error) != 404:
                raise
            if self.skip_special:
                return False
            why = "its name is not UTF-8" if isinstance(error, ClientError) else "its name climbs out of the bucket"
            raise InvalidInput(
                f"bucket {self.bucket!r} holds what cannot be an object: {excerpt(name)} ({why}); "
                "rename it, or leave it out with --skip-special"
            ) from None
        return True

    def _bucket_changed(self, prefix: str) -> Transient:
        return Transient(
            f"bucket {self.bucket!r} changed while it was listed: nothing is left under {excerpt(prefix)}; "
            "try again when nothing writes to it"
        )
