"""Which schema a database has, without importing the migrations.

Opening a catalog costs one small query here. The migrations themselves are imported only when there is something to
create or to bring up to date.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from lakeops.catalog.database import Database
from lakeops.catalog.tables import PREFIX, VERSION_TABLE
from lakeops.model.errors import CatalogVersion

REVISIONS = ("0001",)
"""Every revision of the migrations, oldest first; the last one is what this code works with."""


def revision(conn: Connection) -> str | None:
    """The database's schema revision, or None when it has no lakeops tables at all.

    Raises:
        CatalogVersion: there are such tables, but nothing says of which revision.
    """
    tables = {name for name in inspect(conn).get_table_names() if name.startswith(PREFIX)}
    if not tables:
        return None
    if VERSION_TABLE in tables:
        found: str | None = conn.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
        if found is not None:
            return found
    raise CatalogVersion("this database has lakeops tables without a schema revision: it is not a lakeops catalog")


def require(found: str | None) -> str:
    """The revision of a catalog that somebody else has made. Raises ``CatalogVersion`` when nobody has."""
    if found is None:
        raise CatalogVersion("this database holds no lakeops catalog: check which database the URL names")
    return found


def check_revision(found: str, *, upgrade_first: bool) -> bool:
    """Whether the schema is older than this code and may be brought up to date now.

    Raises:
        CatalogVersion: it is newer than this code, or older and somebody has to decide on the upgrade.
    """
    if found == REVISIONS[-1]:
        return False
    if found not in REVISIONS:
        raise CatalogVersion(
            f"the catalog's schema {found!r} is newer than this lakeops, which knows up to {REVISIONS[-1]!r}: "
            "install a newer lakeops"
        )
    if not upgrade_first:
        raise CatalogVersion(
            f"the catalog's schema {found!r} is older than this lakeops, which needs {REVISIONS[-1]!r}: "
            "back the database up and run `lakeops doctor --upgrade`"
        )
    return True


def upgrade(database: Database) -> None:
    """Bring the schema to this code's revision, in one transaction; others that try meanwhile wait, then find it done.

    Raises:
        CatalogVersion: it is newer than this code.
    """
    from lakeops.catalog.migrations.run import run_migrations

    def work(conn: Connection) -> None:
        database.dialect.lock_schema(conn)
        found = revision(conn)
        if found is None or check_revision(found, upgrade_first=True):
            run_migrations(conn)

    database.write(work, settle=lambda _conn: None)
