"""What all tasks of lakeops share, be they operators, sensors or approvals.

A task class declares its arguments once, as annotated attributes. The rest follows from them: the ``__init__``, which
arguments are templates, what a type checker knows. A task keeps nothing but its arguments between ``__init__`` and
``execute``, and opens no lake before it runs.

``TaskRun`` says which task of which DAG run is running. Idempotency keys and the metadata of commits are made of it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from lakeops.airflow.compat import conf
from lakeops.airflow.failures import failing_at_once
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.model.errors import InvalidInput
from lakeops.model.ids import RESERVED, Origin
from lakeops.model.text import excerpt

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

REQUIRED = inspect.Parameter.empty
TEXT = re.compile(r"(StrategyName \| )?str( \| None)?")
"""Annotations of arguments that are text."""

MAY_BE_EMPTY = {"path", "prefix"}
"""Required arguments that mean everything when they are empty."""


# --- arguments ---


class _Fixed:
    def __init__(self, default: Any) -> None:  # noqa: ANN401
        self.default = default


def fixed(*, default: Any) -> Any:  # noqa: ANN401 - an argument of any type
    """The default value of an argument that is no template: one that is decided when the DAG is written."""
    return _Fixed(default)


@dataclass_transform(kw_only_default=True, field_specifiers=(fixed,))
class Declared:
    """Makes the ``__init__`` and the ``template_fields`` of a task class from its annotated attributes.

    Each annotated attribute is an argument, with the attribute's value as the default. It is a template unless its
    default is ``fixed``. Attributes that Airflow's class has too are no arguments. All other arguments go to Airflow's
    class, which must come after this one among the bases.
    """

    template_fields: Any = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _fixed: ClassVar[set[str]] = set()
    _needed: ClassVar[set[str]] = set()
    _texts: ClassVar[set[str]] = set()
    _maps: ClassVar[set[str]] = set()

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's own
        super().__init__(**kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        airflows = next(base for base in cls.__mro__ if not issubclass(base, Declared))
        own = {
            name: vars(cls).get(name, REQUIRED)
            for name, kind in vars(cls).get("__annotations__", {}).items()
            if "ClassVar" not in str(kind) and not hasattr(airflows, name)
        }
        decided = {name: value.default for name, value in own.items() if isinstance(value, _Fixed)}
        for name, default in decided.items():
            setattr(cls, name, default)
        cls._defaults = {**cls._defaults, **own, **decided}
        cls._fixed = (cls._fixed - own.keys()) | decided.keys()
        kinds = {name: str(vars(cls)["__annotations__"][name]) for name in own}
        needed = {
            name
            for name, default in own.items()
            if "None" not in kinds[name] and (default is REQUIRED or (default and kinds[name] == "str"))
        }
        cls._needed = (cls._needed | needed) - MAY_BE_EMPTY
        cls._texts = cls._texts | {name for name, kind in kinds.items() if TEXT.fullmatch(kind)}
        cls._maps = cls._maps | {name for name, kind in kinds.items() if kind.startswith("Mapping")}
        if "template_fields" not in vars(cls):
            templates = (name for name in cls._defaults if name not in cls._fixed)
            cls.template_fields = (*getattr(airflows, "template_fields", ()), *templates)
        if "__init__" not in vars(cls):
            cls.__init__ = _init(cls._defaults)  # type: ignore[method-assign]

    def airflow_arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments for Airflow's class: those that the DAG gave, with the defaults of this class for others."""
        return given

    def arguments(self) -> dict[str, Any]:
        """The task's arguments, with what their templates have come to by now."""
        return {name: getattr(self, name) for name in self._defaults}

    def check_values(self) -> None:
        """Refuse to run with what templates have come to, where that can mean nothing good. Raises ``InvalidInput``.

        Nothing in a required argument would mean the default branch, or the connection's default repository, which
        nobody has asked for. Templates may give lists and numbers where a text belongs.
        """
        given = self.arguments()
        empty = sorted(name for name in self._needed if not given[name])
        if empty:
            raise InvalidInput(f"{' and '.join(empty)} must not be empty: a template may have come to nothing")
        for name in sorted(self._texts):
            if given[name] is not None and not isinstance(given[name], str):
                raise InvalidInput(f"{name}: {excerpt(given[name])} is not text")
        for name in sorted(self._maps):
            if given[name] and not isinstance(given[name], Mapping):
                raise InvalidInput(f"{name}: {excerpt(given[name])} is not a map from text to text")

    def check_arguments(self) -> None:
        """Refuse, when the DAG is read, what can be seen to be wrong by then. Raises ``InvalidInput``."""


def _init(defaults: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a method
    """An ``__init__`` with these arguments. Airflow refuses a call without a required one, before it gets here."""

    def __init__(self: Declared, **kwargs: Any) -> None:  # noqa: ANN401, N807
        for name, default in defaults.items():
            setattr(self, name, kwargs.pop(name, default))
        Declared.__init__(self, **self.airflow_arguments(kwargs))
        self.check_arguments()

    place = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    named = (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items())
    # Airflow reads the signature: for what a DAG's default_args give, for mapping, and for arguments that are missing.
    __init__.__signature__ = inspect.Signature([place, *named, rest])  # type: ignore[attr-defined]
    return __init__


class LakeopsTask(Declared):
    """A task on one repository of the lake that a connection names.

    Args:
        repo: the repository; the connection's default one when left out.
        lakeops_conn_id: the connection. ``lakeops_default`` is the environment's lake when nobody defined it.
    """

    repo: str | None = None
    lakeops_conn_id: str = DEFAULT_CONN_ID
    if TYPE_CHECKING:
        # Airflow's class takes these too, but does not declare them, or declares a narrower type.
        dag: Any = None
        task_display_name: Any = None
        trigger_rule: Any = None
        retry_delay: Any = None
        pre_execute: Any = None
        post_execute: Any = None

    @contextmanager
    def opened(self) -> Iterator[Repository]:
        """The task's repository, if its arguments can be meant."""
        with failing_at_once(self.arguments()):
            self.check_values()
            with LakeopsHook(self.lakeops_conn_id).repository(self.repo) as repository:
                yield repository


@contextmanager
def opened(repo: str | None, lakeops_conn_id: str) -> Iterator[Repository]:
    """A connection's repository, in an open lake. Errors end the task as ``failing_at_once`` says."""
    with failing_at_once(), LakeopsHook(lakeops_conn_id).repository(repo) as repository:
        yield repository


# --- values from templates ---


_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off", "none", ""}


def number(name: str, value: int | str | None) -> int | None:
    """A whole number, also from the text of a template. Empty text is None. Raises ``InvalidInput``, with the name."""
    if value in (None, "", "None"):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name}: {excerpt(str(value))} is not a number") from None


def truth(name: str, value: bool | str | None) -> bool:
    """Yes or no, also from the text of a template. Raises ``InvalidInput``, with the name: no guess is safe."""
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise InvalidInput(f"{name}: {excerpt(str(value))} is neither true nor false")
    return word in _TRUE


# --- which task is running ---


@dataclass(frozen=True)
class TaskRun:
    """One task of one DAG run, at one of its tries.

    Attributes:
        logical_date: None in runs that have none.
        link: the web address of the task's log; None when Airflow's own address is not configured.
        approved_by: who approved of what the task does, as Airflow has it.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    logical_date: str | None
    link: str | None = None
    approved_by: str | None = None

    @classmethod
    def of(cls, context: Context) -> TaskRun:
        """The task that a context was made for."""
        task = context["ti"]
        logical_date = context.get("logical_date")
        return cls(
            dag_id=task.dag_id,
            run_id=task.run_id,
            task_id=task.task_id,
            map_index=-1 if task.map_index is None else task.map_index,
            try_number=task.try_number,
            logical_date=None if logical_date is None else logical_date.isoformat(),
            link=_link(task),
        )

    def key(self, *request: str, number: int = 1) -> str:
        """An idempotency key of this task. The try is no part of it, so a later try finds what an earlier one did.

        Args:
            request: the verb and the refs that it is about. A task whose DAG was changed to ask for something else has
                new work.
            number: keys after the first are for a task that was cleared after what it publishes had changed.
        """
        parts = (self.dag_id, self.run_id, self.task_id, str(self.map_index), *request, str(number))
        return "airflow-" + hashlib.sha256("\x1f".join(parts).encode()).hexdigest()

    def metadata(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Commit metadata: what the user gave, and under reserved keys which task made it and who approved."""
        origin = {
            "airflow_dag_id": self.dag_id,
            "airflow_run_id": self.run_id,
            "airflow_task_id": self.task_id,
            "airflow_map_index": str(self.map_index),
            "airflow_try_number": str(self.try_number),
        }
        if self.logical_date is not None:
            origin["airflow_logical_date"] = self.logical_date
        if self.link is not None:
            origin["airflow_link"] = self.link
        if self.approved_by is not None:
            origin["approved_by"] = self.approved_by
        own = {key: str(value) for key, value in (given or {}).items() if not key.startswith(RESERVED)}
        return Origin({**own, **origin})

    def made(self, metadata: Mapping[str, str]) -> bool:
        """Whether a commit with this metadata was made by the same DAG run, by any task of it."""
        return metadata.get("airflow_dag_id") == self.dag_id and metadata.get("airflow_run_id") == self.run_id


def made_by_airflow(metadata: Mapping[str, str]) -> bool:
    """Whether a commit with this metadata was made by an operator, of any DAG."""
    return "airflow_dag_id" in metadata


def _link(task: object) -> str | None:
    # Without its own address Airflow makes up a host, and the link would lead nowhere.
    url: str | None = getattr(task, "log_url", None) if conf.get("api", "base_url", fallback=None) else None
    return url
