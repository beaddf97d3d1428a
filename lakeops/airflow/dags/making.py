"""What the ready-made DAGs share: how they are made, and the fields of their forms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from airflow.sdk import DAG, Param

from lakeops.airflow.hook import DEFAULT_CONN_ID

REPOSITORY = "^[a-z0-9][a-z0-9-]{2,62}$"


def made(
    function: Callable[..., DAG],
    dag_id: str,
    arguments: Mapping[str, Any],
    fields: Mapping[str, Param],
    **defaults: Any,
) -> DAG:
    """A DAG with the documentation of the function that makes it.

    Args:
        function: makes the DAG; its documentation is the DAG's.
        dag_id: the DAG's name.
        arguments: what the caller gave: arguments of Airflow's ``DAG``. ``default_args`` are added to those here, and
            ``params`` may give other defaults to fields of the form.
        fields: the fields of the form.
        **defaults: arguments of Airflow's ``DAG``.
    """
    given = dict(arguments)
    text = inspect.getdoc(function) or ""
    shown = text.partition("\n\nArgs:")[0]
    params = {name: deepcopy(field) for name, field in fields.items()}
    for name, value in dict(given.pop("params", None) or {}).items():
        if name in params and not isinstance(value, Param):
            params[name].value = value
        else:
            params[name] = value
    default_args = {**defaults.pop("default_args", {}), **(given.pop("default_args", None) or {})}
    return DAG(
        dag_id,
        **{
            "catchup": False,
            "description": shown.partition("\n")[0],
            "doc_md": shown,
            **defaults,
            **given,
            "default_args": default_args,
            "params": params,
        },
    )


def text(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    """A field that must be filled in."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    return Param(**given, type="string", title=title, description=description, minLength=1, **schema)


def maybe(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    """A field that may stay empty."""
    return Param(default, type=["null", "string"], title=title, description=description, **schema)


def connection_field(default: str = DEFAULT_CONN_ID) -> Param:
    """The field for the connection."""
    return text("Connection", "Airflow's connection to the lake.", default, pattern=r"^\S+$", section="Connection")


def dry_run(description: str) -> Param:
    """The field that lets a form show without doing; it is on unless somebody turns it off."""
    return Param(True, type="boolean", title="Dry run", description=description)
