"""Who may see what: questions to Airflow's auth manager, by connection and by repository.

A page does with a connection what the connection's reader could do. So whoever may read (``GET``) a connection may see
all pages of its lake. Less can be granted too, as the right to read a custom view:

* ``Lakeops:CONNECTION``: the pages of that connection's lake;
* ``Lakeops:CONNECTION/REPOSITORY``: the pages of that repository.

Not every auth manager looks at the name of a custom view. Airflow's simple one lets each viewer see all of them. So a
yes counts only from a manager that says no to a name that nobody can have granted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails

from lakeops.airflow.compat import conf

VIEW = "Lakeops:"
"""What the names of custom views begin with."""
NOBODYS = f"{VIEW}/"
"""The view of no connection and no repository: nobody can have granted it."""


class Rights:
    """What one user may see.

    Args:
        user: as Airflow's auth manager knows them.
    """

    def __init__(self, user: Any) -> None:  # noqa: ANN401 - the auth manager's
        self._user = user
        self._manager = get_auth_manager()

    def lake(self, connection: str) -> bool:
        """Whether they may see all of a connection's lake."""
        details = ConnectionDetails(conn_id=connection, **_team(connection))
        if self._manager.is_authorized_connection(method="GET", details=details, user=self._user):
            return True
        return self.some and self._view(f"{VIEW}{connection}")

    def repository(self, connection: str, repository: str) -> bool:
        """Whether they may see one repository."""
        return self.lake(connection) or self.repository_alone(connection, repository)

    def repository_alone(self, connection: str, repository: str) -> bool:
        """Whether the right to one repository was granted by its own name."""
        return self.some and self._view(f"{VIEW}{connection}/{repository}")

    @cached_property
    def some(self) -> bool:
        """Whether the auth manager tells custom views apart, so that less than a connection can be granted."""
        return not self._view(NOBODYS)

    def _view(self, name: str) -> bool:
        return bool(self._manager.is_authorized_custom_view(method="GET", resource_name=name, user=self._user))


def _team(connection: str) -> dict[str, str | None]:
    """The team of a connection, where Airflow has teams: 3.1 has none."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    from airflow.models import Connection

    return {"team_name": Connection.get_team_name(connection)}
