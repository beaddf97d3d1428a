"""An fsspec filesystem over refs, so that pandas, DuckDB, Dask and pyarrow open ``lakefs://repo/ref/path``.

Reading takes any ref expression. Writing goes to a branch's staging area. Nothing is committed here. Directories are
prefixes of paths: nobody makes them, and an empty one does not exist. In Airflow, ``lakefs://CONNECTION@REPO/REF/PATH``
is in the lake of that connection, and without a connection's name in the lake of ``lakeops_default``.
"""

from __future__ import annotations

import copyreg
import os
import shutil
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeVar

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.transaction import Transaction

from lakeops.model import errors
from lakeops.model.clock import stopwatch
from lakeops.model.names import COMMIT_ID, MAX_PATH_BYTES, connection_in
from lakeops.model.records import CommonPrefix, Entry, is_marker
from lakeops.model.sanitising import excerpt
from lakeops.ops.files import atomic_write, is_clone_state
from lakeops.ops.local.index import check_names
from lakeops.staged_file import CompressedFile, StagedFile
from lakeops.store.recorded import ObjectFile, SmallObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakeops.lake import Lake, Ref, Repository
    from lakeops.settings import Settings

_OPTIONS = ("home", "database_url", "lake", "conn_id")
_FSSPEC_OPTIONS = {
    "add_aliases", "add_docs", "asynchronous", "listings_expiry_time", "loop", "max_paths", "skip_instance_cache",
    "use_listings_cache",
}  # fmt: skip

PINNED_SECONDS, MOVING_SECONDS = 60.0, 1.0
"""Seconds for which entries of a commit, and of any other ref, are cached."""
MOST_ENTRIES, MOST_CONTENTS = 50_000, 16 << 20
"""Entries of one ref that are cached, and bytes of its small objects."""
_PASSED = 1000
"""Objects of an unwanted folder that a listing reads before it starts again behind the folder."""

T = TypeVar("T")


class StagedTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """Files that are staged at the end of a ``with fs.transaction`` block that ended well."""

    def start(self) -> None:
        """Begin a transaction. Raises ``ValueError`` inside another one, whose files fsspec would forget."""
        if self.fs._intrans:  # noqa: SLF001 - fsspec's
            raise ValueError("a transaction of this filesystem is open already; end it before the next one begins")
        super().start()

    def complete(self, commit: bool = True) -> None:
        """Stage or drop the files. Raises ``ValueError``, and stages nothing, when one is still open."""
        still_open = [file.name for file in self.files if commit and not file.closed]
        fs = self.fs
        try:
            super().complete(commit and not still_open)
        finally:  # fsspec before 2026.9 would keep later writes for this transaction, which has ended
            for file in self.files:
                file.discard()
            fs._intrans, fs._transaction = False, None  # noqa: SLF001 - fsspec's
        if still_open:
            raise ValueError(f"{still_open[0]} is not closed at the end of the transaction; nothing was staged")


class LakeopsFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects of a lake by ``lakefs://REPO/REF/PATH``.

    Args:
        home: directory of the embedded default, as for ``Lake.open``.
        database_url: the catalog, as for ``Lake.open``.
        lake: an open lake, in place of both.
        conn_id: an Airflow connection of type ``lakeops``, in place of them.
        **options: fsspec's own.

    Raises:
        InvalidInput: an option is unknown. A misspelt option would otherwise open another lake.
    """

    # delta-rs and others take lakefs:// for the address of a lakeFS server.
    protocol: ClassVar[str | tuple[str, ...]] = ("lakefs", "lakeops")
    root_marker = ""
    cachable = False
    transaction_type = StagedTransaction
    _opened: ClassVar[dict[Settings, Lake]] = {}

    def __init__(
        self,
        home: str | None = None,
        database_url: str | None = None,
        lake: Lake | None = None,
        conn_id: str | None = None,
        **options: Any,
    ) -> None:
        for name in sorted({*options} - _FSSPEC_OPTIONS):
            near = get_close_matches(name, _OPTIONS, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_OPTIONS)} and those of fsspec"
            raise errors.InvalidInput(f"lakefs:// has no option {name!r}; {advice}")
        super().__init__(**options)
        from lakeops.settings import LakeAddress

        self._lake = lake
        self._caches: dict[tuple[str, str], RefCache] = {}
        self._made: set[str] = set()
        if lake is None:
            self._address = LakeAddress.of(conn_id, home=home, database_url=database_url)
        elif conn_id or home or database_url:
            raise errors.InvalidInput("the lake is named twice: give lake, or conn_id, or home or database_url")
        else:
            self._address = LakeAddress()
        self.conn_id = self._address.connection
        self._strip_protocol = self._strip_own  # type: ignore[method-assign] # fsspec strips paths by the instance

    def start_transaction(self) -> Any:
        """Begin a transaction, as ``with fs.transaction`` does."""
        self.transaction.start()
        return self.transaction

    @property
    def lake(self) -> Lake:
        """The lake behind the filesystem, opened at first use and shared by the process."""
        if self._lake is None:
            from lakeops.lake import Lake

            settings = self._address.settings()
            if settings not in self._opened:
                self._opened[settings] = self._address.open(Lake.open)
            self._lake = self._opened[settings]
        return self._lake

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        connection = connection_in(path)
        return {"conn_id": connection} if connection else {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        if isinstance(stripped, list):
            return [cls._strip_protocol(one) for one in stripped]
        connection = connection_in(stripped)
        return stripped[len(connection) + 1 :] if connection else stripped

    def _strip_own(self, path: Any) -> Any:
        """Strip the protocol of paths in this lake. Raises ``InvalidInput`` for one that names another connection."""
        for one in path if isinstance(path, list) else [path]:
            named = connection_in(one)
            if named and named != self.conn_id:
                raise errors.InvalidInput(
                    f"{one!r} is in the lake of connection {named!r}, and this filesystem is of another one; open it "
                    f"with fsspec.filesystem('lakefs', conn_id={named!r})",
                    kind="invalid_uri",
                )
        return type(self)._strip_protocol(path)  # noqa: SLF001 - its own, which the instance's hides

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe an object, or a directory that has objects. Raises ``FileNotFoundError``."""
        with self._os_errors(path):
            if not self._strip_protocol(path):
                return _directory("")
            repository, ref, key = self._split(path)
            if not ref:
                self.lake.repository(repository)  # raises when there is none
                return _directory(repository)
            cached = self._cache_of(repository, ref)
            if not key:
                cached.handle.commit_id  # noqa: B018 - raises when there is no such ref
                return _directory(f"{repository}/{ref}")
            with suppress(errors.ObjectNotFound):
                return _file(repository, ref, cached.stat(key))
            name = f"{repository}/{ref}/{key}"
            if name in self._made or next(iter(cached.handle.list(key + "/")), None) is not None:
                return _directory(name)
        raise FileNotFoundError(f"{path} ({self._describe_lake()})")

    def exists(self, path: str, **_: Any) -> bool:
        """Tell whether there is such an object or directory. A lake that does not answer is an error, and not False."""
        return bool(self._type(path))

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> str:
        try:
            return str(self.info(path)["type"])
        except (FileNotFoundError, errors.InvalidInput) as error:
            if getattr(error, "kind", "") not in {"", "invalid_path", "invalid_ref"}:
                raise
        return ""  # also for a pattern

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List the objects and directories of a directory, one level deep. Raises ``FileNotFoundError``."""
        with self._os_errors(path):
            repository, ref, key = self._split(path) if self._strip_protocol(path) else ("", "", "")
            if ref:
                cached, prefix = self._begin(repository, ref), key + "/" if key else ""
                items = list(cached.list(prefix, "/"))
                if not items and key and f"{repository}/{ref}/{key}" not in self._made:
                    items = [cached.stat(key)]
                found = [
                    _directory(f"{repository}/{ref}/{item.path.rstrip('/')}")
                    if isinstance(item, CommonPrefix)
                    else _file(repository, ref, item)
                    for item in items
                    if item.path != prefix  # the folder's own marker
                ]
            elif not repository:
                found = [_directory(item.id) for item in self.lake.repositories()]
            else:
                handle = self.lake.repository(repository)
                found = [_directory(f"{repository}/{item.id}") for item in (*handle.branches(), *handle.tags())]
        return found if detail else [item["name"] for item in found]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """List all files below a directory with one listing; a file lists itself. With ``detail``, dicts by name."""
        where = self._strip_protocol(path)
        repository, ref, key = self._split(where) if where else ("", "", "")
        found: dict[str, dict[str, Any]] = {}
        folders: list[str] = []
        try:
            with self._os_errors(where):
                if not ref or (maxdepth is not None and maxdepth < 1):
                    options = {"on_error": "raise", **options}
                    return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
                cached, prefix, root = self._begin(repository, ref), key + "/" if key else "", f"{repository}/{ref}/"
                for item in cached.list(prefix) if maxdepth is None else cached.levels(prefix, maxdepth):
                    if isinstance(item, Entry):
                        found[root + item.path] = _file(repository, ref, item)
                    else:
                        folders.append(root + item.path)
                if key and not found and not folders:
                    found[where] = _file(repository, ref, cached.stat(key))
                for name in [*found, *folders] if withdirs else ():
                    while len(name := name.rpartition("/")[0]) > len(where) and name not in found:
                        found[name] = _directory(name)
        except FileNotFoundError:
            if found or folders:  # it went while it was listed
                raise
        if withdirs and self.isdir(where):
            found[where] = self.info(where)
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def _cache_of(self, repository: str, ref: str) -> RefCache:
        found = self._caches.get((repository, ref))
        return found if found is not None and found.is_fresh() else self._begin(repository, ref)

    def _begin(self, repository: str, ref: str) -> RefCache:
        lake, writes = self.lake, self.lake.catalog.database.writes
        before = writes()  # ahead of everything that is read
        self._caches = {place: cached for place, cached in self._caches.items() if cached.is_fresh()}
        found = self._caches[repository, ref] = RefCache(lake.repository(repository), ref, before, writes)
        return found

    def modified(self, path: str) -> datetime:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return datetime.fromtimestamp(info["mtime"], UTC)

    created = modified

    def checksum(self, path: str) -> str:
        return str(self.info(path).get("checksum", ""))

    def sign(self, path: str, expiration: int = 900, **_: Any) -> str:
        with self._os_errors(path):
            repository, ref, key = self._split(path)
            return self.lake.repository(repository).ref(ref).presign(key, expiration)

    def get_file(
        self,
        rpath: str,
        lpath: str | os.PathLike[str] | BinaryIO | None = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: BinaryIO | None = None,
        found: list[tuple[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        """Download an object and verify its checksum. The file appears whole or not at all.

        With ``found`` source and target are appended to it, and nothing is downloaded.
        """
        if isinstance(lpath, str | os.PathLike) and is_clone_state(os.fspath(lpath)):
            raise errors.InvalidPath(f"nothing was written: clones keep their own files at {excerpt(os.fspath(lpath))}")
        if found is not None:
            found.append((rpath, lpath))
            return
        options["verify"] = True
        if outfile is not None or not isinstance(lpath, str | os.PathLike) or self.isdir(rpath):
            super().get_file(rpath, lpath, callback, outfile, **options)
            return
        target = Path(lpath)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as file:
            super().get_file(rpath, lpath, callback, file, **options)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Open an object. ``compression`` and text modes are fsspec's."""
        if compression is None or "b" not in mode or "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        compress = compr[get_compression(path, compression)]
        file = super().open(path, mode, block_size, cache_options, **options)
        return CompressedFile(compress(file, mode=mode[0]), file)

    def _open(
        self, path: str, mode: str = "rb", autocommit: bool = True, verify: bool | None = None, **options: Any
    ) -> BinaryIO | StagedFile:
        with self._os_errors(path):
            repository, ref, key = self._split(path)
            if mode == "rb":
                cached = self._cache_of(repository, ref)
                found, name = cached.open(key, verify), self._strip_protocol(path)
                details = _file(repository, ref, cached.stat(key))
                fetch = partial(self.cat_file, name)
                vars(found).update(fs=self, path=name, details=details, blocksize=self.blocksize, _fetch_range=fetch)
                return found
            if mode in ("wb", "xb", "ab"):
                names = ("metadata", "content_type")
                for option in options.keys() - names:  # others are those of other file systems
                    if near := get_close_matches(option.lower(), names, 1):
                        raise errors.InvalidInput(f"open has no option {option!r}; did you mean {near[0]!r}?")
                branch = self.lake.repository(repository).branch(ref)
                before = branch.stat(key) if mode != "wb" and branch.exists(key) else None
                if before and mode == "xb":  # raised before anything is written
                    raise FileExistsError(path)

                def put(data: BinaryIO) -> None:
                    with self._os_errors(path):
                        described = {name: options.get(name, getattr(before, name, None)) for name in names}
                        branch.put(key, data, if_absent=mode != "wb" and before is None, seen=before, **described)

                file = StagedFile(path, put, autocommit=autocommit)
                if before:
                    with branch.open_entry(before, verify=True) as contents:
                        shutil.copyfileobj(contents, file)
                return file
        raise NotImplementedError(f"mode {mode!r}: objects are read, written or appended to, never changed in place")

    def invalidate_cache(self, path: str | None = None) -> None:  # noqa: ARG002 - all refs are
        self._caches = {}

    def rm_file(self, path: str) -> None:
        with self._os_errors(path):
            repository, ref, key = self._split(path)
            self.lake.repository(repository).branch(ref).delete(key)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Stage the deletion of objects; with ``recursive``, of all objects below a directory, down to ``maxdepth``.

        Raises:
            FileNotFoundError, IsADirectoryError: one of them is not there, or is a directory. Nothing was staged.
        """
        names = self.expand_path(path)
        files = {name for name in names if self.isfile(name)}
        for name in names:
            if name not in files and not self.exists(name):
                raise FileNotFoundError(f"{name} ({self._describe_lake()})")
            if name not in files and not recursive:
                raise IsADirectoryError(f"{name} is a directory; add recursive=True to delete all objects below it")
        for name in names:
            repository, ref, key = self._split(name)
            self._forget_made(name)
            if recursive and maxdepth is None:
                with self._os_errors(name):
                    self.lake.repository(repository).branch(ref).delete_prefix(key + "/" if key else "")
            elif recursive:
                files.update(self.find(name, maxdepth=maxdepth))
        for name in sorted(files):
            self.rm_file(name)

    def expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> list[str]:
        """Find the paths that match names and patterns. A name that exists is no pattern, whatever it contains."""
        names = [self._strip_protocol(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
        literal = [name for name in names if has_magic(name) and self.exists(name)]
        found = {*literal}
        for name in literal if recursive else ():
            found.update(self.find(name, maxdepth=maxdepth, withdirs=True))
        rest = [name for name in names if name not in found]
        return sorted(found.union(super().expand_path(rest, recursive, maxdepth, **options) if rest else ()))

    def copy(self, path1: Any, path2: Any, *args: Any, **options: Any) -> None:
        """Copy objects within the lake, all as they were before the first copy."""
        for one in self._copies(path1, path2, *args, **options):
            self._copy_entry(*one)

    def _copies(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, *args: Any, **options: Any
    ) -> list[tuple[str, str, Entry, Ref]]:
        """Find source, target, entry and ref of each copy to be made. ``FileExistsError`` for two of one target."""
        pairs = self._paired(path1, path2, self, recursive, maxdepth)
        found: list[tuple[str, str, Entry, Ref]] = []
        super().copy(*pairs, recursive, maxdepth, *args, found=found, **options)
        _check_distinct((source, target) for source, target, *_ in found)
        return found

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Download objects. Raises ``InvalidPath``, before anything is written, for paths that cannot be files."""
        if isinstance(lpath, str):
            lpath = make_path_posix(lpath)
        pairs = self._paired(rpath, lpath, LocalFileSystem(), recursive, maxdepth)
        found: list[tuple[str, str]] = []
        try:
            super().get(*pairs, recursive, maxdepth=maxdepth, found=found, **options)
        except errors.InvalidInput:
            raise
        except ValueError as error:  # a name with '..'
            raise errors.InvalidPath(f"{error}; nothing was written") from error
        files = [(source, target) for source, target in found if self.isfile(source)]
        _check_distinct(files)
        if isinstance(lpath, str):
            start = lpath.rstrip("/")
            last = start.rpartition("/")[2]
            top = last if last.strip(".") else "-"
            check_names((f"{top}{target.removeprefix(start)}" for _, target in files), folds=False)
        super().get([source for source, _ in found], [target for _, target in found], callback=callback, **options)

    def _paired(
        self, path: Any, target: Any, there: AbstractFileSystem, recursive: bool, maxdepth: int | None
    ) -> tuple[Any, Any]:
        """Sources and targets: lists where a name looks like a pattern, so that fsspec takes it for none."""
        if isinstance(path, list) and isinstance(target, list) and len(path) != len(target):
            raise ValueError(f"{len(path)} sources and {len(target)} targets; name a target for each source")
        if not (isinstance(path, str) and isinstance(target, str) and has_magic(path) and self.exists(path)):
            return path, target
        found = [name for name in self.expand_path(path, recursive, maxdepth) if recursive or self.isfile(name)]
        top, start = self._strip_protocol(path), self._target(path, target, there)
        return found, [start + name.removeprefix(top) for name in found]

    def _target(self, path: str, target: str, there: AbstractFileSystem) -> str:
        """The path that a file or folder gets, by fsspec's rule: it goes into a folder that exists."""
        into = not path.endswith("/") and (target.endswith("/") or there.isdir(target))
        return target.rstrip("/") + ("/" + self._strip_protocol(path).rpartition("/")[2] if into else "")

    def cp_file(self, path1: str, path2: str, found: list[tuple[str, str, Entry, Ref]] | None = None, **_: Any) -> None:
        """Copy an object to another path, on any branch of any repository, or append it to ``found``."""
        with self._os_errors(path1):
            repository, ref, key = self._split(path1)
            source = self.lake.repository(repository).ref(ref)
            entry = source.find(key) if key else None
            if entry is None and self.isdir(path1):
                entry = source.find(key + "/") if key else None
                if entry is None:
                    return
            entry = entry or source.stat(key)  # which says why there is none
        if found is None:
            self._copy_entry(path1, path2, entry, source)
        else:
            found.append((path1, self._strip_protocol(path2), entry, source))

    def _copy_entry(self, path1: str, path2: str, entry: Entry, source: Ref) -> None:
        with self._os_errors(path1):
            there, branch, target = self._split(path2)
            target += "/" if entry.path.endswith("/") else ""  # a folder's marker
            described: dict[str, Any] = {"metadata": entry.metadata, "content_type": entry.content_type}
            with source.open_entry(entry) as contents:
                self.lake.repository(there).branch(branch).put(target, contents, **described)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Move files: copy them, and stage the deletion of exactly the objects that were copied.

        A folder of a branch that stays on it moves in one transaction, so that a move that was killed can be repeated.
        Of all others, objects that are put to their paths meanwhile stay, and so do those that ``maxdepth`` leaves out.
        """
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        if recursive and maxdepth is None and isinstance(path1, str) and isinstance(path2, str) and self.isdir(path1):
            (*place, old), (*there, new) = self._split(path1), self._split(self._target(path1, path2, self))
            if old and new and place == there:
                with self._os_errors(path1):
                    self.lake.repository(place[0]).branch(place[1]).rename(old, new, recursive=True)
                self._forget_made(path1)
                return
        moved = self._copies(path1, path2, recursive, maxdepth, on_error="raise", **options)
        if not moved:
            raise FileNotFoundError(f"{path1} is no object; move a directory with recursive=True")
        for repository, ref in sorted({self._split(path)[:2] for path, *_ in moved}):
            with self._os_errors(f"{repository}/{ref}"):  # before anything is copied
                self.lake.repository(repository).branch(ref).require_stageable()
        for copied in moved:
            self._copy_entry(*copied)
        for path, _, entry, _ in moved:
            repository, ref, _ = self._split(path)
            with self._os_errors(path), suppress(errors.ObjectNotFound, errors.NotAsSeen):
                self.lake.repository(repository).branch(ref).delete(entry.path, seen=entry)
        for one in path1 if isinstance(path1, list) else [path1]:
            self._forget_made(one)

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        """Let this filesystem show an empty directory. The lake has none: a directory is a prefix of paths."""
        self._made.add(self._strip_protocol(path))

    makedirs = mkdir

    def rmdir(self, path: str) -> None:
        if self.ls(path):
            raise OSError(f"{path} is not empty")
        self._forget_made(path)
        if self.isdir(path):  # by its marker
            with self._os_errors(path), suppress(errors.ObjectNotFound):
                repository, ref, key = self._split(path)
                self.lake.repository(repository).branch(ref).delete(key + "/")

    def _forget_made(self, path: str) -> None:
        name = self._strip_protocol(path) + "/"
        self._made = {one for one in self._made if not f"{one}/".startswith(name)}

    @contextmanager
    def _os_errors(self, path: str) -> Iterator[None]:
        """Translate errors to ``OSError``. The message about a missing object names the lake."""
        try:
            yield
        except errors.NotFound as error:
            raise FileNotFoundError(f"{path}: {error.message} ({self._describe_lake()})") from error
        except (errors.PathTaken, errors.NotAsSeen) as error:
            raise FileExistsError(f"{path}: {error.message}") from error
        except errors.PreconditionFailed as error:
            raise PermissionError(f"{path}: {error.message}") from error

    def _describe_lake(self) -> str:
        return self._address.describe(self.lake.catalog.database.shown)

    def _split(self, path: str) -> tuple[str, str, str]:
        repository, _, rest = self._strip_protocol(path).partition("/")
        ref, _, key = rest.partition("/")
        if not repository:
            raise errors.InvalidInput(f"{path!r} names no repository; write lakefs://REPO/REF/PATH", kind="invalid_uri")
        return repository, ref, key


def _reduced(file: ObjectFile) -> tuple[Any, ...]:
    """How a file that this filesystem opened is pickled, for programs that read in other processes."""
    try:
        return _reopened, (file.fs, file.path, file.details["checksum"], file.tell())  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError("a file that fsspec did not open cannot be pickled") from None


def _reopened(fs: LakeopsFileSystem, path: str, checksum: str, position: int) -> Any:
    file = fs.open(path)
    if file.details["checksum"] != checksum:
        file.close()
        raise OSError(f"{path} has other contents by now than when it was opened; open it by the id of a commit")
    file.seek(position)
    return file


for _kind in (ObjectFile, SmallObject):
    copyreg.pickle(_kind, _reduced)


def _check_distinct(pairs: Iterable[tuple[str, str]]) -> None:
    """Raise ``FileExistsError`` where two sources have one target."""
    known: dict[str, str] = {}
    for source, target in pairs:
        if known.setdefault(target, source) != source:
            raise FileExistsError(f"{known[target]} and {source} would both become {target}; nothing was written")


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _file(repository: str, ref: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": f"{repository}/{ref}/{entry.path}",
        "size": entry.size_bytes,
        "type": "file",
        "metadata": dict(entry.metadata),
        **{field: getattr(entry, field) for field in ("mtime", "checksum", "content_type", "physical_address")},
    }


class RefCache:
    """Caches entries of a ref, and its small objects, until the process writes anything or time has passed.

    Programs list a directory, and then ask for each file in it several times. A missing object is not cached.
    ``writes`` returns the number of this process's writes to catalogs. ``before`` is that number before the first read.
    """

    def __init__(self, repository: Repository, ref: str, before: int, writes: Callable[[], int]) -> None:
        self.handle: Ref = repository.ref(ref)
        self._passed = stopwatch()
        self._seconds = PINNED_SECONDS if COMMIT_ID.fullmatch(ref) else MOVING_SECONDS
        self._before, self._writes = before, writes
        self._entries: dict[str, Entry] = {}
        self._contents: dict[tuple[str, bool | None], bytes] = {}
        self._room = MOST_CONTENTS

    def is_fresh(self) -> bool:
        """Tell whether the cached entries are still valid."""
        return self._writes() == self._before and self._passed() < self._seconds

    def stat(self, key: str) -> Entry:
        """The entry at a path. Raises ``ObjectNotFound``."""
        found = self._entries.get(key)
        return self._remember(self.handle.stat(key)) if found is None else found

    def open(self, key: str, verify: bool | None) -> ObjectFile:
        """Open the object at a path. A missing object is looked up again, so that the error tells why."""
        known = self._contents.get((key, verify))
        if known is not None:
            return SmallObject(known)
        entry = self.stat(key)
        try:
            file = self.handle.open_entry(entry, verify=verify)
        except errors.FileMissing:
            file = self.handle.open_entry(self._remember(self.handle.stat(key)), verify=verify)
        if isinstance(file, SmallObject) and file.size <= self._room:
            self._room -= file.size
            self._contents[key, verify] = file.contents
        return file

    def list(self, prefix: str, delimiter: str = "") -> Iterator[Entry | CommonPrefix]:
        """List objects under a prefix.

        An empty object whose path ends in a slash is a folder, also that of the prefix. A path with an empty part is
        refused: programs take it for the path without that part.
        """
        return map(self._shown, self.handle.list(prefix, delimiter=delimiter))

    def levels(self, prefix: str, most: int) -> Iterator[Entry | CommonPrefix]:
        """List objects under a prefix down to ``most`` levels, and each folder that lies deeper once."""
        after: str | None = ""
        while after is not None:
            folder, passed, start, after = "", 0, after, None
            for entry in self.handle.list(prefix, after=start):
                if folder and entry.path.startswith(folder):
                    passed += 1
                    if passed == _PASSED:
                        after = folder + "\U0010ffff" * ((MAX_PATH_BYTES - len(folder.encode())) // 4)
                        break
                    continue
                shown = self._shown(entry)
                parts = entry.path[len(prefix) :].split("/", most)
                folder, passed = entry.path.removesuffix(parts[most]) if len(parts) > most else "", 0
                yield CommonPrefix(folder) if folder else shown

    def _shown(self, item: Entry | CommonPrefix) -> Entry | CommonPrefix:
        if isinstance(item, Entry) and is_marker(item):
            item = CommonPrefix(item.path)
        if f"/{item.path}".find("//") >= 0 or (isinstance(item, Entry) and item.path.endswith("/")):
            raise errors.InvalidPath(
                f"{excerpt(item.path)} has an empty part, so it cannot be listed as a file; read it by its path, or "
                "rename it with `lakeops fs mv`"
            )
        return self._remember(item)

    def _remember(self, item: T) -> T:
        if isinstance(item, Entry) and len(self._entries) < MOST_ENTRIES:
            self._entries[item.path] = item
        return item
