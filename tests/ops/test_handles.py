"""Methods of handles are functions of ``lakeops.ops``: what a reader, a caller and a type checker see of them."""

import inspect
import subprocess
import sys
from pydoc import plaintext, render_doc

import pytest

from lakeops import Branch, Mirror, Ref, Repository
from lakeops.lake import repository
from lakeops.lake.connection import Verb
from lakeops.ops import commit, gc, merge
from lakeops.ops.gc import sweep

HANDLES = [Branch, Mirror, Ref, Repository, repository.GarbageCollection, repository.Readable]
VERBS = [(handle, name) for handle in HANDLES for name, value in vars(handle).items() if isinstance(value, Verb)]


def test_the_signature_is_that_of_the_function_without_what_the_handle_supplies():
    shown = inspect.signature(Repository.merge)
    of_function = inspect.signature(merge.merge)
    assert list(shown.parameters)[0] == "self"
    assert list(shown.parameters.values())[1:] == list(of_function.parameters.values())[1:]
    assert shown.return_annotation == of_function.return_annotation
    of_branch = inspect.signature(Branch.commit).parameters.values()
    assert list(of_branch)[1:] == list(inspect.signature(commit.commit).parameters.values())[2:]


@pytest.mark.parametrize(("handle", "name"), VERBS)
def test_type_checkers_know_every_verb(handle, name):
    """Without a declaration the type counts as a guess, and pyright calls the package's types incomplete."""
    assert inspect.get_annotations(handle)[name] == "Final"


@pytest.mark.parametrize(("handle", "name"), VERBS)
def test_help_shows_signature_and_documentation_of_every_verb(handle, name):
    method = getattr(handle, name)
    assert method.__qualname__ == f"{handle.__qualname__}.{name}"
    shown = render_doc(method, renderer=plaintext)
    assert f"{name}(self" in shown
    assert "ctx" not in shown
    assert method.__doc__.splitlines()[0] in shown


def test_a_context_manager_is_shown_as_one():
    assert inspect.signature(Branch.batch).return_annotation == "AbstractContextManager[Batch]"
    assert inspect.signature(Branch.output).return_annotation == "AbstractContextManager[OutputUrl]"


def test_a_repository_has_what_its_record_has(repo):
    assert {name: getattr(repo, name) for name in repo.record.to_json()} == repo.record.to_json()
    repo.set_read_only()
    assert repo.read_only
    assert type(repo.id) is str


def test_a_method_works_through_the_instance_and_through_the_class(repo):
    assert repo.branch("main").exists("nosuch") is False
    assert Repository.merge_base(repo, "main", "main") == repo.merge_base("main", right="main")


def test_a_function_that_is_replaced_is_replaced_on_the_handle(repo, monkeypatch):
    assert repo.gc.sweep  # found before: what was found is not kept
    monkeypatch.setattr(gc.sweep, "sweep", lambda ctx, mark_id, *, force=False: (ctx.repository_id, mark_id, force))
    assert repo.gc.sweep("m", force=True) == (repo.id, "m", True)
    monkeypatch.undo()
    assert gc.sweep.sweep is sweep.sweep


def test_wrong_arguments_are_python_s_own_error(repo):
    with pytest.raises(TypeError, match=r"merge\(\) got an unexpected keyword argument 'stratgy'"):
        repo.merge("main", "main", stratgy="source-wins")


def test_making_handles_imports_no_verb(tmp_path):
    code = (
        "import sys; from lakeops import Lake; lake = Lake.open(sys.argv[1]); repo = lake.create_repository('flights');"
        "before = set(sys.modules); lake.repository('flights').branch('main'); repo.gc; lake.close();"
        "print([name for name in {'lakeops.ops.merge', 'lakeops.ops.put', 'lakeops.ops.gc.mark'} & set(sys.modules)])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


TYPED = """
from lakeops import Branch, Repository
reveal_type(Repository.merge)
def use(repo: Repository, branch: Branch) -> None:
    reveal_type(repo.merge)
    reveal_type(branch.reset)
    repo.merge("dev")
    branch.commit("m", idempotency_key=3)
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_signature(tmp_path):
    (tmp_path / "use.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "use.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    choices = "Literal['source-wins'] | Literal['dest-wins'] | lakeops.model.records.Strategy | None"
    options = f"strategy: {choices} =, message: str | None ="
    assert done.stdout.count(f"source: str, destination: str, *, {options}") == 2
    assert "def (prefix: str | None =, path: str | None =, *, pinned: " in done.stdout
    assert "[call-arg]" in done.stdout
    assert "[arg-type]" in done.stdout
    assert "Found 2 errors" in done.stdout
