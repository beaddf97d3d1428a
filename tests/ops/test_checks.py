"""Checks of commits: verdicts, branches that require them, and commits that declare them."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.errors import raising

from lakeops.model.errors import InvalidInput, NotFound
from lakeops.model.ids import Origin, make_commit, with_along
from lakeops.model.records import Along


@pytest.fixture
def work(repo):
    """A commit on a branch, to be merged into a branch that requires two checks."""
    repo.require_check("ma*", "quality")
    repo.require_check("main", "approval")
    branch = repo.create_branch("dev", "main")
    branch.put("a", b"1")
    return branch.commit("load").id


def test_a_merge_needs_every_check_of_this_very_commit(repo, work):
    with raising("missing_check", f"{work[:16]} lacks 'approval', 'quality'"):
        repo.merge("dev", "main")
    repo.ref("dev").pass_check("quality")
    with raising("missing_check", "lacks 'approval';"):
        repo.merge("dev", "main")
    repo.ref("dev").pass_check("approval", by="ada")
    repo.branch("dev").put("b", b"2")
    later = repo.branch("dev").commit("more").id
    with raising("missing_check", later[:16]):
        repo.merge("dev", "main")
    assert repo.merge(work, "main").reference
    assert [(one.name, one.said_by) for one in repo.ref(work).verdicts()][0] == ("approval", "ada")


@pytest.mark.parametrize("squash", [False, True])
def test_a_preview_says_what_the_merge_would(repo, work, squash):
    for act in (repo.preview_merge, repo.merge):
        with raising("missing_check", f"{work[:16]} lacks 'approval', 'quality'"):
            act("dev", "main", squash=squash)
    for name in ("quality", "approval"):
        repo.ref("dev").pass_check(name)
    repo.set_read_only()
    for act in (repo.preview_merge, repo.merge):
        with raising("read_only_repository"):
            act("dev", "main", squash=squash)
    repo.set_read_only(False)
    foretold = repo.preview_merge("dev", "main", squash=squash).summary
    assert foretold == repo.merge("dev", "main", squash=squash).summary
    for more in ({}, {"allow_empty": True}):
        foretold = repo.preview_merge("dev", "main", squash=squash, **more)
        assert foretold.up_to_date is not bool(more)
        assert repo.merge("dev", "main", squash=squash, **more).up_to_date is foretold.up_to_date


def test_a_squash_needs_the_checks_of_what_it_brings(repo, work):
    """The head, which is the only parent of a squash, says nothing of what comes."""
    for name in ("quality", "approval"):
        repo.ref("main").pass_check(name)
    with raising("missing_check", f"{work[:16]} lacks 'approval', 'quality'"):
        repo.merge("dev", "main", squash=True)
    for name in ("quality", "approval"):
        repo.ref("main").withdraw_check(name)
        repo.ref("dev").pass_check(name)
    assert repo.merge("dev", "main", squash=True).reference


def test_nothing_but_merges_reaches_such_a_branch(repo, work):
    main = repo.branch("main")
    repo.create_branch("mars", "main")
    for change in (
        lambda: main.put("x", b""),
        lambda: main.commit("x", allow_empty=True),
        lambda: repo.cherry_pick("dev", "main"),
        lambda: repo.delete_branch("mars"),
    ):
        with raising("protected_branch"):
            change()


def test_what_is_withdrawn_counts_no_longer(repo, work):
    for name in ("quality", "approval"):
        repo.ref(work).pass_check(name)
    repo.ref(work).withdraw_check("quality")
    with raising("missing_check", "lacks 'quality';"):
        repo.merge("dev", "main")
    with pytest.raises(NotFound, match=r"no verdict of check .quality."):
        repo.ref(work).withdraw_check("quality")
    repo.drop_check("ma*", "quality")
    assert repo.merge("dev", "main").reference
    with pytest.raises(NotFound, match=r"no required check 'quality'.*protection list"):
        repo.drop_check("ma*", "quality")
    assert [(one.pattern, one.check) for one in repo.required_checks()] == [("main", "approval")]


def test_who_passed_a_check_first_stays(repo):
    first = repo.ref("main").pass_check("quality", by="ada")
    assert repo.ref("main").pass_check("quality", by="bob") == first
    assert repo.ref("main").verdicts() == [first]


@pytest.mark.parametrize("name", ["", " ", "a\n", "x" * 251])
def test_a_check_has_a_name(repo, name):
    with raising("invalid_name"):
        repo.ref("main").pass_check(name)
    with raising("invalid_name"):
        repo.require_check("main", name)


# --- checks that commits declare ---
def declaring(repo, branch, *checks):
    """A commit of something new on a branch, which declares checks."""
    number = len(list(repo.log(branch)))
    repo.branch(branch).put(f"{branch}/{number}", b"x")
    return repo.branch(branch).commit(f"number {number}", checks=checks).id


def plain(repo, branch):
    return declaring(repo, branch)


def refused(repo, source, destination="main", **options):
    """The message with which a merge is refused, foretold alike. Nothing is written."""
    before = repo.branch(destination).commit_id, list(repo.branch(destination).uncommitted()), objects_of(repo)
    said = []
    for act in (repo.preview_merge, repo.merge):
        with raising("missing_check") as error:
            act(source, destination, **options)
        assert error.value.exit_code == 5
        said.append(error.value.message)
    assert said[0] == said[1]
    assert before == (
        repo.branch(destination).commit_id,
        list(repo.branch(destination).uncommitted()),
        objects_of(repo),
    )
    return said[0]


def objects_of(repo):
    place = Path(repo.storage_namespace.removeprefix("file://"))
    return sorted(str(one) for one in place.rglob("*") if one.is_file())


@pytest.fixture
def dev(repo):
    repo.create_branch("dev", "main")
    return repo


@pytest.mark.parametrize("squash", [False, True])
def test_a_merge_takes_a_commit_whose_declared_checks_have_all_passed(dev, squash):
    made = declaring(dev, "dev", "amount", "approval")
    assert "'amount' waiting" in refused(dev, "dev", squash=squash)
    dev.ref(made).fail_check("amount", "it is -1", by="ada", run="nightly")
    assert f"'amount' failed by ada (it is -1) of commit {made[:16]}" in refused(dev, "dev", squash=squash)
    dev.ref(made).pass_check("amount")
    dev.ref(made).fail_check("approval", "not today", by="bob")
    assert "'approval' rejected by bob (not today)" in refused(dev, made, squash=squash)
    dev.ref(made).pass_check("approval", by="bob")
    merged = dev.merge("dev", "main", squash=squash).reference
    assert dev.ref(merged).commit.metadata["lakeops.checks.passed"] == f"{made} amount\n{made} approval"
    assert [(one.name, one.state) for one in dev.ref(made).verdicts()] == [("amount", "passed"), ("approval", "passed")]


def test_a_later_commit_does_not_hide_one_that_declares(dev):
    made = declaring(dev, "dev", "amount")
    plain(dev, "dev")
    assert made[:16] in refused(dev, "dev")
    dev.create_branch("other", "main")
    plain(dev, "other")
    assert made[:16] in refused(dev, "dev", "other"), "a branch between does not hide it either"
    dev.merge("dev", "other", despite_checks=["amount"])
    assert made[:16] in refused(dev, "other"), "what one merge went around, the next is asked for again"
    with raising("missing_check"):
        dev.cherry_pick("other", "main", 1)
    with raising("missing_check"):
        dev.cherry_pick(made, "main")
    with raising("missing_check"):
        dev.branch("main").move("dev")
    again = declaring(dev, "dev", "amount")
    assert again[:16] in refused(dev, "dev")
    dev.ref(again).pass_check("amount")
    assert dev.merge("dev", "main").reference, "a later commit that declares it and has passed it counts"


def test_what_was_merged_once_may_go_on(dev):
    made = declaring(dev, "dev", "amount")
    dev.ref(made).pass_check("amount")
    dev.create_branch("release", "main")
    dev.merge("dev", "main")
    dev.ref(made).withdraw_check("amount")  # as in a copy of the lake that has the commits alone
    assert dev.merge("main", "release").reference, "the merge says that it had passed"
    dev.create_branch("next", "main^")
    dev.ref(made).fail_check("amount", "after all")
    refused(dev, "main", "next")


def test_a_branch_goes_back_to_what_it_has_shown(dev):
    declaring(dev, "dev", "amount")
    merged = dev.merge("dev", "main", despite_checks=["amount"]).reference
    dev.branch("main").move("main^", force=True)
    dev.branch("main").move(merged)
    assert dev.branch("main").commit_id == merged


def test_who_goes_around_a_check_is_on_record(dev):
    made = declaring(dev, "dev", "amount", "approval")
    assert "'approval' waiting" in refused(dev, "dev", despite_checks=["amount"])
    merged = dev.merge("dev", "main", despite_checks=["approval", "amount", "unknown"])
    assert dev.ref(merged.reference).commit.metadata["lakeops.checks.despite"] == f"{made} amount\n{made} approval"
    found = [(one.ref, one.before, one.after) for one in dev.audit() if one.action == "despite-check"]
    assert sorted(found) == [("amount", made, merged.reference), ("approval", made, merged.reference)]


def test_a_check_that_a_branch_requires_is_not_gone_around(dev):
    declaring(dev, "dev", "amount")
    dev.require_check("main", "amount")
    assert "lacks 'amount'" in refused(dev, "dev", despite_checks=["amount"])


def test_a_merge_may_ask_for_more_checks(dev):
    made = plain(dev, "dev")
    assert "'amount' waiting" in refused(dev, "dev", checks=["amount"])
    dev.ref(made).pass_check("amount")
    assert dev.merge("dev", "main", checks=["amount"]).reference
    assert dev.merge("dev", "main", checks=["other"]).up_to_date
    assert "'other' waiting" in refused(dev, "dev", checks=["other"], allow_empty=True)
    assert dev.merge("dev", "main", checks=["amount"], allow_empty=True).reference


CHANGES = {
    "merge": lambda repo, told: repo.merge("dev", "main", on_head=told),
    "cherry-pick": lambda repo, told: repo.cherry_pick("dev", "main", on_head=told),
    "move": lambda repo, told: repo.branch("main").move("dev", on_head=told),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_verdict_that_changes_while_a_change_is_planned_counts(dev, change):
    made = declaring(dev, "dev", "amount")
    dev.ref(made).pass_check("amount")
    with raising("missing_check", "any more"):
        CHANGES[change](dev, lambda _: dev.ref(made).fail_check("amount", "x"))
    assert not list(dev.ref("main").list())
    dev.ref(made).pass_check("amount")
    CHANGES[change](dev, lambda _: None)


def test_a_commit_that_covers_another_ones_changes_declares_its_checks(repo):
    """Somebody else's commit may take the rows of a commit that declares checks. It may then not be merged either."""
    made = make_commit(parents=[], committer="a", message="b", creation_date=0, meta_range_id="c")
    along = Along("ada", "load", {"lakeops.checks": "amount\nsize"})
    assert with_along(made, [along]).declared_checks == ["amount", "size"]
    many = [replace(along, message="m" * 60_000)] * 40
    assert with_along(made, [*many, replace(along, metadata={"lakeops.checks": "last"})]).declared_checks == [
        *("amount", "last", "size")
    ]


@pytest.mark.parametrize("key", ["lakeops.checks", "lakeops.checks.passed", "lakeops.checks.despite"])
def test_nobody_makes_such_metadata_up(dev, key):
    given = {key: "amount"}
    branch = dev.branch("dev")
    declaring(dev, "dev", "amount")
    for metadata in (given, Origin(given)):
        for act in (
            lambda metadata=metadata: branch.commit("x", metadata, allow_empty=True),
            lambda metadata=metadata: dev.merge("dev", "main", metadata=metadata),
            lambda metadata=metadata: dev.cherry_pick("dev", "main", metadata=metadata),
            lambda metadata=metadata: branch.revert("dev", metadata=metadata),
            lambda metadata=metadata: branch.import_objects("file:///tmp", "x", "x", metadata),
        ):
            with pytest.raises(InvalidInput, match="reserved"):
                act()


@pytest.mark.parametrize("names", ["amount", 5, [""], ["a\n"], [None], [["a"]], ["x" * 251], ["a"] * 1001])
def test_checks_are_a_list_of_names(dev, names):
    for act in (
        lambda: dev.branch("dev").commit("x", allow_empty=True, checks=names),
        lambda: dev.merge("dev", "main", checks=names),
        lambda: dev.merge("dev", "main", despite_checks=names),
        lambda: dev.preview_merge("dev", "main", despite_checks=names),
    ):
        with pytest.raises(InvalidInput):
            act()


def test_a_check_may_be_required_below_a_prefix_alone(dev):
    dev.require_check("main", "quality", prefix="sales/")
    dev.branch("dev").put("hr/a", b"1")
    dev.branch("dev").commit("hr")
    assert dev.merge("dev", "main").reference
    dev.branch("dev").put("sales/a", b"1")
    dev.branch("dev").put("hr/b", b"1")
    made = dev.branch("dev").commit("both")
    assert "lacks 'quality'" in refused(dev, "dev")
    dev.ref(made.id).pass_check("quality")
    assert dev.merge("dev", "main").reference
    dev.require_check("main", "quality", prefix="hr/")
    dev.branch("dev").delete("hr/b")
    dev.branch("dev").commit("removed")
    assert "lacks 'quality'" in refused(dev, "dev")
    dev.drop_check("main", "quality", prefix="hr/")
    assert [(one.check, one.prefix) for one in dev.required_checks()] == [("quality", "sales/")]
    assert dev.merge("dev", "main").reference


# --- the model: what a merge takes follows from the commits that it brings and the newest verdict on each ---
def steps_of(draw):
    for _ in range(50):
        names = {name for name in "ab" if draw.random() < 0.5}
        kind = draw.choice(["commit", "verdict", "verdict", "merge"])
        if kind == "commit":
            yield kind, draw.choice("xyz"), names
        elif kind == "verdict":
            yield kind, draw.randrange(4), draw.choice("ab"), draw.choice([True, True, True, False, None])
        else:
            yield kind, draw.choice("xyz"), draw.choice("xyz"), names if draw.random() < 0.5 else set()


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_merge_is_taken_when_all_that_it_brings_has_passed(lake, seed):
    steps = steps_of(Random(seed))
    repo = lake.create_repository(f"m{len(list(lake.repositories())):04}")
    heads = {name: repo.create_branch(name, "main").commit_id for name in "xyz"}
    parents: dict[str, tuple[str, ...]] = {heads["x"]: ()}
    declared: dict[str, set[str]] = {}
    passed: dict[tuple[str, str], bool] = {}
    vouched: set[tuple[str, str]] = set()
    vouching: dict[str, set[tuple[str, str]]] = {}

    def reach(one):
        return {one}.union(*map(reach, parents[one]))

    for step in steps:
        if step[0] == "commit":
            _, branch, checks = step
            repo.branch(branch).put(f"{branch}/{len(parents)}", b"")
            made = repo.branch(branch).commit("c", checks=sorted(checks)).id
            parents[made], declared[made], heads[branch] = (heads[branch],), checks, made
        elif step[0] == "verdict" and declared:
            _, number, name, good = step
            ref = repo.ref([*declared][-1 - number % len(declared)])
            if good is not None:
                ref.pass_check(name) if good else ref.fail_check(name, "bad")
                passed[ref.id, name] = good
            elif passed.pop((ref.id, name), None) is not None:
                ref.withdraw_check(name)
        elif step[0] == "merge":
            _, source, destination, despite = step
            new = reach(heads[source]) - reach(heads[destination])
            vouched = set().union(*(vouching.get(one, set()) for one in new))
            good = {
                (one, name)
                for one in new
                for name in declared.get(one, ())
                if passed.get((one, name), (one, name) in vouched)
            }
            lacking = {
                (one, name)
                for one in new
                for name in declared.get(one, ())
                if not any((late, name) in good for late in new if one in reach(late))
            }
            if any(name not in despite for _, name in lacking):
                refused(repo, source, destination, despite_checks=sorted(despite))
                continue
            done = repo.merge(source, destination, despite_checks=sorted(despite)).reference
            assert (done is None) == (not new)
            if done is not None:
                metadata = repo.ref(done).commit.metadata
                gone_around = {tuple(one.split(" ")) for one in metadata.get("lakeops.checks.despite", "").splitlines()}
                assert gone_around == lacking
                vouching[done] = {one for one in good if passed.get(one)}
                parents[done], heads[destination] = (heads[destination], heads[source]), done
