"""What a page offers to do: the forms of ``lakeops.airflow.dags``, filled in with what the page is about.

A page changes nothing. Its form asks Airflow's own API to trigger a DAG, in the browser of the user, so Airflow decides
who may, and every change is a run with a log and an author.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from lakeops.model.errors import NotFound

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

PREFIX, TAG = "lakeops_", "lakeops"
MOST = 50
"""DAGs of one kind that are looked at."""


@dataclass(frozen=True)
class Field:
    """A field of a form.

    Attributes:
        name: the parameter of the DAG.
        kind: ``text``, ``number``, ``checkbox`` or ``choice``.
        title: what stands beside it.
        description: what stands below it.
        value: what it holds at first.
        choices: what it may hold, each with its text.
        pattern: what a text must match.
        required: whether it must be filled in.
    """

    name: str
    kind: str
    title: str
    description: str
    value: Any
    choices: Mapping[str, str]
    pattern: str | None
    required: bool


@dataclass(frozen=True)
class Form:
    """A DAG that people trigger.

    Attributes:
        dag_id: its name.
        text: what it does, in a line.
        paused: whether nothing runs until somebody unpauses it.
        fields: its fields.
    """

    dag_id: str
    text: str
    paused: bool
    fields: list[Field]


def form(kind: str, connection: str, given: Mapping[str, str], user: Any) -> Form:  # noqa: ANN401 - the auth manager's
    """The form of one kind (``merge``, say) that the user may trigger, with values filled in.

    Among several DAGs of that kind the one for the connection comes first.

    Args:
        kind: what follows ``lakeops_`` in the name of the ready-made DAG.
        connection: whose lake the page shows.
        given: values by name of the field. Those that the DAG has no field for are left out, and ``dry_run``: no link
            decides that something is done.
        user: who looks.

    Raises:
        NotFound: there is no such DAG, or the user may trigger none.
    """
    if not kind.isidentifier():
        raise NotFound("there is no such form")
    with create_session() as session:
        dags = [dag for model in _models(session, kind) if (dag := SerializedDagModel.get(model, session=session))]
        mine = sorted(dags, key=lambda dag: (_default(dag, "connection") != connection, dag.dag_id != PREFIX + kind))
        for row in mine:
            if _may_trigger(row.dag_id, session, user):
                paused = bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == row.dag_id)))
                return _form(row.dag, paused, {**given, "connection": connection})
    if not mine:
        raise NotFound(
            f"no DAG folder has the form {PREFIX}{kind}; a file there has to import it from lakeops.airflow.dags"
        )
    raise NotFound(f"you may not trigger the DAG {mine[0].dag_id}")


def _models(session: Session, kind: str) -> list[str]:
    """Names of the DAGs of a kind, as they are in Airflow's database."""
    named = DagModel.dag_id.endswith(f"_{kind}", autoescape=True)
    tagged = DagModel.tags.any(name=TAG)
    query = select(DagModel.dag_id).where(named, tagged, DagModel.is_stale.is_(False)).order_by(DagModel.dag_id)
    return [str(name) for name in session.scalars(query.limit(MOST))]


def _may_trigger(dag_id: str, session: Session, user: Any) -> bool:  # noqa: ANN401
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id, session=session))
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
    )


def _default(row: Any, name: str) -> Any:  # noqa: ANN401
    params = row.dag.params
    return params.get_param(name).value if name in params else None


def _form(dag: Any, paused: bool, given: Mapping[str, str]) -> Form:  # noqa: ANN401
    own = {name: value for name, value in given.items() if name != "dry_run"}
    fields = [_field(name, dag.params.get_param(name), own.get(name)) for name in dag.params]
    return Form(dag.dag_id, (dag.description or dag.dag_id).rstrip("."), paused, fields)


def _field(name: str, param: Any, given: str | None) -> Field:  # noqa: ANN401 - Airflow's
    schema = param.schema
    types = {schema["type"]} if isinstance(schema.get("type"), str) else set(schema.get("type", ()))
    kind = "checkbox" if "boolean" in types else "number" if types & {"integer", "number"} else "text"
    shown = schema.get("values_display", {})
    choices = {str(choice): str(shown.get(choice, choice)) for choice in schema.get("enum", ())}
    value = param.value if isinstance(param.value, str | int | float | bool) else None
    if given is not None:
        value = given.lower() in {"1", "true"} if kind == "checkbox" else given
    return Field(
        name,
        "choice" if choices else kind,
        str(schema.get("title") or name),
        str(param.description or ""),
        value,
        choices,
        schema.get("pattern"),
        "null" not in types and kind != "checkbox",
    )
