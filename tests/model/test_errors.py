"""The error tree: kinds are stable and apart, exit codes are the contract's, and errors survive a process boundary."""

import ast
import pickle
from pathlib import Path

import pytest

import lakeops
from lakeops.model import errors
from lakeops.model.errors import KeyReused, LakeopsError, MergeConflict, SweepIncomplete


def tree(root=LakeopsError):
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def made(kind):
    if kind is KeyReused:
        return KeyReused("k", "abc" + "0" * 61, ["message", "metadata"])
    if issubclass(kind, MergeConflict):
        return kind("dev", "main", ["a", "b"])
    if kind is SweepIncomplete:
        return SweepIncomplete("m", [("data/x", "denied")], 3)
    return kind("one line")


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_errors_cross_processes_whole(kind):
    error = made(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.message == error.message
    assert vars(copy) == vars(error)
    assert copy.to_json() == error.to_json()


def test_kinds_are_all_different():
    """Except that of a missing file, which programs know by the kind of an object that is not there."""
    assert (errors.FileMissing.kind, errors.FileMissing.exit_code) == ("object_not_found", 4)
    kinds = [kind.kind for kind in tree() if kind is not errors.FileMissing] + [
        kind for some in errors.KINDS.values() for kind in some
    ]
    assert len(kinds) == len(set(kinds)) > 55


def test_exit_codes_are_those_of_the_contract():
    assert {kind.exit_code for kind in tree()} == {1, 2, 3, 4, 5}


def test_errors_are_python_s_own_where_python_has_one():
    for kind in tree():
        assert issubclass(kind, ValueError) == issubclass(kind, errors.InvalidInput), kind
        assert issubclass(kind, OSError) == issubclass(kind, errors.ObjectNotFound), kind
    with pytest.raises(ValueError, match="one line"):
        raise errors.InvalidInput("one line", kind="invalid_uri")
    with pytest.raises(FileNotFoundError, match="one line"):
        raise errors.ObjectNotFound("one line")


def test_the_package_exports_every_error():
    names = {kind.__name__ for kind in tree()}
    assert set(errors.__all__) == names
    assert {name for name in names if getattr(lakeops, name, None) is getattr(errors, name)} == names
    assert names <= set(lakeops.__all__)


def test_every_kind_that_is_raised_is_listed_with_its_class():
    """Nobody raises a kind that the list, and so the documentation, does not have."""
    package = Path(lakeops.__file__).parent
    raised = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for word in node.keywords if isinstance(node, ast.Call) else ():
                if word.arg == "kind" and isinstance(word.value, ast.Constant):
                    func = ast.unparse(node.func)
                    which = ast.unparse(node.args[0]) if func == "partial" else func.removeprefix("errors.")
                    raised |= {(which, word.value.value)} if which in errors.__all__ else set()
    assert raised == {(which.__name__, kind) for which, some in errors.KINDS.items() for kind in some}
