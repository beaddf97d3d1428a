"""Shows verbs on the handles in the Python reference: griffe reads source, so it must be told what ``verb`` binds."""

from __future__ import annotations

import re
from typing import Any

import griffe

_VERB = re.compile(r"(?:ref_|folder_|source_)?verb\(lambda: (ops\.[\w.]+)\)")


class Verbs(griffe.Extension):
    """Replaces ``merge = verb(lambda: ops.merge.merge)`` by a method with the signature and text of the function."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through the classes of ``lakeops.lake`` once the package is read."""
        if "lake" not in pkg.members:
            return
        for module in pkg["lake"].modules.values():
            for handle in module.classes.values():
                for name, member in list(handle.members.items()):
                    found = _VERB.fullmatch(str(member.value)) if member.is_attribute and member.value else None
                    if found:
                        handle.set_member(name, _method(name, member, pkg[found[1]]))


def _method(name: str, binding: Any, function: griffe.Function) -> griffe.Function:
    supplied = 1 if str(binding.value).startswith("verb(") else 2
    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    returns = function.returns
    if any("contextmanager" in str(decorator.value) for decorator in function.decorators):
        returns = str(returns).replace("Iterator", "AbstractContextManager")
    return griffe.Function(
        name,
        lineno=binding.lineno,
        endlineno=binding.endlineno,
        parameters=griffe.Parameters(own, *list(function.parameters)[supplied:]),
        returns=returns,
        docstring=function.docstring,
        runtime=True,
    )
