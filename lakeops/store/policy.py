"""Which objects outside its storage namespace a repository may refer to.

An entry can name any file and any bucket, and whoever reads it reads that place with his own rights. So what an entry
names is believed only as far as the policy goes: when it is linked, when a mirror is brought it, and whenever it is
opened. Stores open no address without a policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakeops.model.errors import PreconditionFailed
from lakeops.model.sanitising import excerpt
from lakeops.store.layout import DATA, is_absolute, relative
from lakeops.store.location import lies_in, real_place, split_address

SETTING = "external_prefixes"


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The rule of one repository. Plain data, for workers too.

    Attributes:
        namespace: its storage namespace.
        prefixes: the locations that its entries may refer to besides. None for every one that can be named.
        files: whether ``None`` stands for files of this machine too.
        managed: what repositories manage themselves: a repository's name and the real place of one of its folders.
    """

    namespace: str
    prefixes: tuple[str, ...] | None = None
    files: bool = True
    managed: tuple[tuple[str, str], ...] = ()

    def check(self, address: str) -> str:
        """An address as it is stored, when it may be opened.

        Raises ``PreconditionFailed`` (``address_refused``), ``InvalidInput``.
        """
        key = relative(self.namespace, address)
        if is_absolute(key):
            place, name = split_address(key)
            self.check_folders([place.url if place.scheme == "file" else f"{place.url}/{name.rpartition('/')[0]}"])
        elif not key.startswith(DATA):
            raise PreconditionFailed(
                f"{excerpt(address)} is no object of {self.namespace}; nothing of it is read", kind="address_refused"
            )
        return key

    def check_folders(self, folders: Iterable[str]) -> None:
        """Refuse objects in a directory that entries may not refer to.

        Raises ``PreconditionFailed`` (``address_refused``), ``InvalidInput``.

        Args:
            folders: directories, or a bucket's prefixes, as absolute addresses spell them.
        """
        allowed = None if self.prefixes is None else [real_place(prefix) for prefix in self.prefixes]
        for folder in folders:
            reason = self._reason(folder, real_place(folder), allowed)
            if reason is not None:
                raise PreconditionFailed(f"objects in {excerpt(folder)} are refused: {reason}", kind="address_refused")

    def _reason(self, folder: str, place: str, allowed: list[str] | None) -> str | None:
        local = folder.startswith("file://")
        if local and not self.namespace.startswith("file://"):
            return "a repository in a bucket refers to no files, which are others on every machine"
        for name, root in self.managed:
            if lies_in(place, root):
                return f"repository {name!r} manages what lies there, and may delete it"
        if allowed is not None:
            listed = any(lies_in(place, prefix) for prefix in allowed)
            return None if listed else f"the setting {SETTING} does not list this place"
        if local and not self.files:
            return f"the source of this mirror names files of this machine; the setting {SETTING} has to list the place"
        return None
