"""No verb that short tasks call imports pandas, which takes as much CPU as the rest of a commit."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import shutil
import sys
from pathlib import Path
from lakeops import Lake, MergeConflict, Split

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise AssertionError("pandas is imported")  # pyarrow bears an ImportError

sys.meta_path.insert(0, Watch())

lake = Lake.open()
repo = lake.create_repository("repo", split=Split(4, 8, 32))
main = repo.branch("main")
assert list(main.list()) == list(main.uncommitted()) == list(repo.diff("main", "main")) == []
with main.batch() as batch:
    for number in range(200):
        labels = {"number": str(number)} if number % 7 else None
        batch.put(f"t/day={number:03}/part", str(number).encode(), metadata=labels)
assert len(list(main.uncommitted())) == 200
main.commit("days")
for name in ("one", "other"):
    branch = repo.create_branch(name, "main")
    for number in range(3 if name == "one" else 5, 200, 20):
        branch.put(f"t/day={number:03}/part", name.encode())
    branch.put(f"t/{name}", b"new", metadata={"a": "b"})
    branch.put("both", name.encode())
    branch.delete("t/day=190/part")
    assert len(list(branch.uncommitted())) == 13
    branch.commit(name)
assert len(list(repo.diff("main", "one"))) == 13
assert len(list(repo.diff("one", "other", prefix="t/"))) == 22
assert {entry.path for entry in main.list("t/day=00", delimiter="/")} == {f"t/day=00{digit}/" for digit in range(10)}
assert main.stat("t/day=007/part").size_bytes == 1
assert len(list(repo.ref("one~1").list(after="t/day=100/part"))) == 99
repo.merge("one", "main")
try:
    repo.merge("other", "main")
except MergeConflict:
    repo.merge("other", "main", strategy="source-wins")
else:
    sys.exit("no conflict")
main.revert("main", 1)
third = repo.create_branch("third", "main")
third.put("t/third", b"")
third.commit("third")
repo.cherry_pick("third", "main")
main.put("t/staged", b"")
main.delete_prefix("t/day=01")
main.reset()
main.put("t/again", b"")
main.commit("once more")
list(repo.log("main", prefix="t/again"))

place = Path(sys.argv[1])
elsewhere = Lake.open(home=str(place / "elsewhere"), database_url=f"sqlite:///{place}/elsewhere.db")
mirror = elsewhere.create_mirror("repo", source=lake)
for url in (repo.storage_namespace, mirror.storage_namespace):
    assert url.startswith("file:///")
copied = [Path(url.removeprefix("file://")) for url in (repo.storage_namespace, mirror.storage_namespace)]
shutil.copytree(*copied, dirs_exist_ok=True)
status = mirror.sync()
assert status["main"].promoted == repo.branch("main").commit_id, status
source = place / "source"
source.mkdir()
for number in range(40):
    (source / f"{number:02}").write_bytes(b"1")
repo.create_branch("imported", "main").import_objects(source.as_uri(), "there/", "import")
"""


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_short_verbs_leave_pandas_alone(request, tmp_path, where):
    environment = os.environ | {"LAKEOPS_HOME": str(tmp_path), "LAKEOPS_FSYNC": "false"}
    if where == "postgres":
        environment["LAKEOPS_DATABASE_URL"] = request.getfixturevalue("empty_postgres_url")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
