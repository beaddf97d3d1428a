"""Verbs as methods of handles: a function of ``lakeops.ops`` becomes a method without being spelled again.

    class Repository:
        merge = verb(lambda: ops.merge.merge)

The function holds the signature, the default values and the documentation. Type checkers, ``help`` and
``inspect.signature`` show them on the method, without the parameters that the handle supplies. The function's module
is imported when the method is first used, so making a handle imports no verb.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from lakeops.model.errors import naming_what_ran_out
from lakeops.ops.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class LatePackage:
    """A package whose modules are imported when they are first named."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LatePackage | ModuleType:
        module = import_module(f"{self._name}.{name}")
        return LatePackage(module.__name__) if hasattr(module, "__path__") else module


if TYPE_CHECKING:
    import lakeops.ops.audit
    import lakeops.ops.bisect
    import lakeops.ops.bisection
    import lakeops.ops.blame
    import lakeops.ops.branch
    import lakeops.ops.commit
    import lakeops.ops.diff
    import lakeops.ops.fsck.check
    import lakeops.ops.gc.files
    import lakeops.ops.gc.prune
    import lakeops.ops.gc.rules
    import lakeops.ops.gc.sweep
    import lakeops.ops.history
    import lakeops.ops.hooks
    import lakeops.ops.ingest
    import lakeops.ops.local.clone
    import lakeops.ops.local.commit
    import lakeops.ops.merge
    import lakeops.ops.mirror.create
    import lakeops.ops.mirror.promote_writable
    import lakeops.ops.mirror.prove
    import lakeops.ops.mirror.skip
    import lakeops.ops.mirror.source
    import lakeops.ops.mirror.status
    import lakeops.ops.mirror.sync
    import lakeops.ops.output
    import lakeops.ops.overlap
    import lakeops.ops.owner
    import lakeops.ops.put
    import lakeops.ops.refs.dump
    import lakeops.ops.refs.restore
    import lakeops.ops.relink
    import lakeops.ops.replicate
    import lakeops.ops.repository
    import lakeops.ops.resolve
    import lakeops.ops.shape
    import lakeops.ops.snapshot
    import lakeops.ops.stage
    import lakeops.ops.sums
    import lakeops.ops.view  # noqa: F401 - all of them are used as attributes of ops
    from lakeops import ops as ops  # noqa: PLC0414 - says that it is exported
else:
    ops = LatePackage("lakeops.ops")


class Verb(Generic[P, R]):
    """A method that calls a function of ``lakeops.ops``.

    Args:
        find: gives the function. Called at each use, so that tests can replace the function.
        supplied: the handle's attributes that are the function's first arguments.
    """

    def __init__(self, find: Callable[[], Callable[..., R]], *supplied: str) -> None:
        self._find = find
        self._supplied = supplied

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._full_name = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, handle: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...

    @overload
    def __get__(self, handle: object, owner: type) -> Callable[P, R]: ...

    def __get__(self, handle: object | None, owner: type) -> Callable[..., R]:
        return self._method if handle is None else MethodType(self._method, handle)

    @cached_property
    def _method(self) -> Callable[..., R]:
        function = self._find()

        @wraps(function)
        @naming_what_ran_out
        def method(handle: object, /, *args: object, **options: object) -> R:
            return self._find()(*(getattr(handle, name) for name in self._supplied), *args, **options)

        method.__name__, method.__qualname__ = self._name, self._full_name
        method.__signature__ = self._signature(function)  # type: ignore[attr-defined]
        return method

    def _signature(self, function: Callable[..., R]) -> inspect.Signature:
        found = inspect.signature(function)
        handle = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        returned = found.return_annotation
        if hasattr(function, "__wrapped__"):  # a context manager, written as a generator
            returned = returned.replace("Iterator", "AbstractContextManager")
        rest = list(found.parameters.values())[len(self._supplied) :]
        return found.replace(parameters=[handle, *rest], return_annotation=returned)


def verb(find: Callable[[], Callable[Concatenate[Context, P], R]]) -> Verb[P, R]:
    """Make a function of a context a method of a repository's handle."""
    return Verb(find, "_ctx")


def ref_verb(find: Callable[[], Callable[Concatenate[Context, str, P], R]]) -> Verb[P, R]:
    """Make a function of a context and a ref a method of a ref's handle."""
    return Verb(find, "_ctx", "id")


def folder_verb(find: Callable[[], Callable[Concatenate[Context, Path, P], R]]) -> Verb[P, R]:
    """Make a function of a context and a directory a method of a clone's handle."""
    return Verb(find, "_ctx", "directory")
