"""Facts that pages state are those of the code: versions, stores, limits, commands, roles, and tests that pages name.

``FACTS`` is the table of them. A value that changes in the code fails the page that says the old one.
"""

import re
import shlex
import tomllib
from datetime import timedelta
from typing import Any

import pytest
import typer
from support.doc_pages import DOCS, ROOT
from typer.core import TyperGroup

from lakeops.catalog import marks
from lakeops.catalog.roles import ROLES
from lakeops.cli import serve
from lakeops.cli.app import app
from lakeops.model import ids, mirrors, names, retention
from lakeops.model.errors import LakeopsError
from lakeops.model.records import Split
from lakeops.ops import deletion_limit
from lakeops.ops.gc import mark, sweep
from lakeops.ranges import metarange
from lakeops.serving import LIMITS
from lakeops.settings import Settings
from lakeops.store import foreign
from lakeops.store.base import StoreSettings
from lakeops.store.open import BUCKETS
from lakeops.version import __version__
from lakeops.web import objects, pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    if page.name != "CHANGELOG.md"  # it speaks of what was
}
PLAIN = {name: re.sub(r"\s+", " ", text) for name, text in PAGES.items()}
HOW_TO = [name for name in PAGES if re.fullmatch(r"docs/[a-z-]+\.md", name)]
COMMANDS = typer.main.get_command(app)
NO_CONTEXT: Any = None
"""Groups of commands know their members without one."""


def _between(requirement):
    """``3.1.8 to 3.3`` of ``>=3.1.8,<3.4``; one version where only one minor version fits."""
    least, below = re.search(r">=([\d.]+),<([\d.]+)", requirement).groups()  # type: ignore[union-attr]
    major, minor = below.split(".")
    newest = f"{major}.{int(minor) - 1}"
    return newest if least == newest else f"{least} to {newest}"


def _needed(extra):
    return _between(EXTRAS[extra][0])


PYTHON = f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer"
AIRFLOW = f"{_needed('airflow')}"
SPLIT = f"{Split().min_entries:,}, {Split().target_entries:,} and {Split().max_entries:,} entries"
A_RANGE = f"{Split().min_entries + Split().target_entries:,}"
ENTRY_BYTES = 68
"""Bytes of metadata for an entry, as ``make bench`` measured."""
RANGE_KB = (Split().min_entries + Split().target_entries) * ENTRY_BYTES // 10_000 * 10
PREVIEW = f"{foreign.PAGE_BYTES >> 20} MiB and {foreign.PAGE_SECONDS} seconds of CPU"
NUMBERS = ["no", "one", "two", "three", "four", "five", "six"]
SHORT = ".".join(__version__.split(".")[:2])

FACTS = [
    *((PYTHON, page) for page in ("README.md", "CONTRIBUTING.md", "docs/install.md")),
    (f"| Python | {PYTHON.removeprefix('Python ')} |", "docs/status.md"),
    (f"version {SHORT}", "README.md"),
    (f"| version | {SHORT}, beta", "docs/status.md"),
    (f"[{PROJECT['license']}](LICENSE)", "README.md"),
    (f"yes, {PROJECT['license']}", "docs/comparison.md"),
    *((f"Airflow {AIRFLOW}", page) for page in ("docs/airflow.md", "docs/install.md", "docs/provider.md")),
    (f"| Airflow | {AIRFLOW} (", "docs/status.md"),
    (f"lakeops needs Airflow {AIRFLOW.split(maxsplit=1)[0]}", "docs/provider.md"),
    (f"(Spark {_needed('spark')})", "docs/install.md"),
    (f"| Spark | {_needed('spark')} for", "docs/status.md"),
    (SPLIT, "docs/format.md"),
    *(
        (f"about {A_RANGE}", page)
        for page in (
            "docs/concepts.md",
            "docs/format.md",
            "docs/glossary.md",
            "docs/adr/0008-content-is-cut-by-path.md",
        )
    ),
    (f"{names.MAX_PATH_BYTES:,} UTF-8 bytes", "docs/format.md"),
    (f"longer than {names.MAX_PATH_BYTES:,} bytes", "docs/troubleshooting.md"),
    (f"at most {names.MAX_PATH_BYTES:,} bytes in UTF-8", "docs/concepts.md"),
    (f"1 to {ids.MAX_KEY_BYTES} bytes of printable text", "docs/cli.md"),
    (f"New repositories get {Settings.model_fields['grace_hours'].default:g} hours", "docs/gc.md"),
    (f"{retention.UNDO_DAYS}, or more if set", "docs/gc.md"),
    (f"({retention.LOG_DAYS}; at least {retention.LEAST_LOG_DAYS} and `undo_days`)", "docs/gc.md"),
    (f"older than `key_days` ({retention.KEY_DAYS})", "docs/gc.md"),
    (f"`undo_days` at least {retention.UNDO_DAYS}, and `log_days` at least {retention.LEAST_LOG_DAYS}", "docs/gc.md"),
    (f"`http://127.0.0.1:{serve.PORT}`", "docs/pages.md"),
    (f"whole numbers from 0 to {retention.MOST_DAYS:,}", "docs/gc.md"),
    (
        f"more than {deletion_limit.FLOOR} objects that holds more than {deletion_limit.SHARE:.0%}".replace("%", " %"),
        "docs/gc.md",
    ),
    (f"again every {sweep.STEP:,} files", "docs/gc.md"),
    (f"or over {marks.BOUND // timedelta(hours=1)} hours more", "docs/gc.md"),
    (f"older than {marks.SWEEPABLE.days} days, or not the newest", "docs/gc.md"),
    (f"silent for {mark.SILENT_DAYS} days", "docs/mirroring.md"),
    (f"arrives for {mirrors.STALL_TIMEOUT // 60} minutes", "docs/mirroring.md"),
    (f"{LIMITS.header_bytes >> 10} KiB, {LIMITS.headers} headers", "docs/gateway.md"),
    (f"| connections | {LIMITS.connections:,}", "docs/gateway.md"),
    (f"| body of a request | {LIMITS.body_bytes >> 30} GiB", "docs/gateway.md"),
    *((f"| {role} |", "docs/team.md") for role in ROLES),
    (f"[{NUMBERS[len(ROLES)]} roles](team.md#roles)", "docs/index.md"),
    (f"| permissions | {NUMBERS[len(ROLES)]} roles,", "docs/comparison.md"),
    (f"about {ENTRY_BYTES} bytes of metadata for each committed entry", "docs/operating.md"),
    (f"about {RANGE_KB} kB each", "docs/operating.md"),
    (f"about {RANGE_KB} kB of metadata for each range", "docs/faq.md"),
    (f"{NUMBERS[len(ROLES)]} [roles](team.md#roles)", "docs/faq.md"),
    (f"above {metarange.MOST_INLINE:,} ranges ({metarange.MOST_INLINE_NEAR:,} on a local disk)", "docs/operating.md"),
    (f"({metarange.MOST_INLINE_NEAR:,} ranges on a local disk)", "docs/faq.md"),
    (f"{metarange.MOST_INLINE:,} ranges, about ten million objects", "docs/faq.md"),
    (f"more than {metarange.MOST_INLINE:,} ranges", "docs/adr/0081-a-range-is-a-file.md"),
    (f"`cache_mb` ({Settings.model_fields['cache_mb'].default} MiB)", "docs/operating.md"),
    (f"up to {Settings.model_fields['disk_cache_mb'].default >> 10} GiB (`disk_cache_mb`)", "docs/stores.md"),
    (f"| attempts of one request | {StoreSettings().max_attempts} |", "docs/stores.md"),
    (f"{StoreSettings().connect_timeout:g} s to connect, {StoreSettings().read_timeout:g} s between", "docs/stores.md"),
    (f"part of a big upload | {StoreSettings().part_bytes >> 20} MiB", "docs/stores.md"),
    (f"which may take {PREVIEW}", "docs/pages.md"),
    (f"a process that may take {PREVIEW}", "SECURITY.md"),
    (f"counted up to {pages.COUNTED:,} changes", "docs/pages.md"),
    (f"A page searches {pages.SEARCHED:,} commits", "docs/pages.md"),
    (f"number of branches (counted to {pages.MOST_BRANCHES:,})", "docs/pages.md"),
    (f"not committed (counted to {pages.STAGED:,})", "docs/pages.md"),
    (f"The page looks at {objects.DEPTH} commits", "docs/pages.md"),
    *((f"`{scheme}://", page) for scheme in ("file", *BUCKETS) for page in ("docs/stores.md", "docs/write.md")),
    *((f"`{extra}`", "docs/install.md") for extra in EXTRAS),
    *(
        (f"| {code} |", "docs/cli.md")
        for code in sorted({one.exit_code for one in (LakeopsError, *LakeopsError.__subclasses__())})
    ),
]
"""Texts that a page has to have, made of the values in the code."""


@pytest.mark.parametrize(("fact", "page"), FACTS, ids=[f"{page}-{fact}" for fact, page in FACTS])
def test_a_page_states_what_the_code_has(fact, page):
    assert fact in PLAIN[page]


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_and_files_that_a_page_names_exist(page):
    """As in the comparison and the promises, whose rows say which test shows them."""
    named = re.findall(r"`((?:tests|dags|demo|bench|lakeops)/[\w./-]+?)(?:::(\w+))?`", PAGES[page])
    wrong = [name for name, _ in named if not (ROOT / name).exists()]
    assert not wrong
    for name, function in named:
        assert not function or f"def {function}(" in (ROOT / name).read_text(encoding="utf-8"), function


def test_every_promise_has_tests_and_the_harnesses_their_last_runs():
    page = PAGES["docs/PROMISES.md"]
    rows = dict(re.findall(r"^\| (P\d+) [^|]+ \| ([^|]+) \|", page, re.MULTILINE))
    assert [*rows] == [f"P{number}" for number in range(1, 21)]
    assert [name for name, held in rows.items() if not re.search(r"`tests/\w+/test_\w+\.py", held)] == []
    runs = page.split("## Last runs")[1]
    kinds = {*re.findall(r"`python -m harness (\w+) ", runs)}
    assert kinds == {*re.findall(r"make harness KIND=(\w+)", page)}
    assert (
        len(
            re.findall(
                r"\d{1,2} November 2026, on version [\d.]+ of the source \(commit [0-9a-f]{7}\)",
                PLAIN["docs/PROMISES.md"],
            )
        )
        >= 2
    )


def first_column(text):
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table
    return {row.split("|")[1].strip() for row in table[0].splitlines()[2:]}


def test_every_row_of_the_comparison_names_what_shows_it():
    compared, shown = (
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
        for table in re.findall(r"(?:^\|.*\n)+", PAGES["docs/comparison.md"], re.MULTILINE)[:2]
    )
    assert [row[0] for row in compared] == [row[0] for row in shown]
    assert len(compared) > 10
    front = first_column(PAGES["README.md"].split("## How it compares")[1])
    assert front - {row[0] for row in compared} == {"choose it when"}
    for _, where, tests in shown:
        assert re.search(r"\]\([\w-]+\.md(#[\w-]+)?\)", where)
        assert re.search(r"`tests/\w+/test_\w+\.py`", tests)


@pytest.mark.parametrize("front", ["README.md", "docs/index.md"])
def test_front_pages_lead_to_every_feature(front):
    """A feature with a page of its own is on the page that people see first."""
    features = ["gateway", "local", "gc", "team", "publish", "read", "pages"]
    assert [name for name in features if not re.search(rf"\b{name}\.md", PAGES[front])] == []


def _resolved(words):
    """The words behind a command's name, and the options of the command."""
    command, options = COMMANDS, {"--json"}
    while isinstance(command, TyperGroup):
        if not words or words[0].startswith("-"):
            break
        options |= {one for param in command.params for one in param.opts}
        found = command.get_command(NO_CONTEXT, words[0])
        if found is None:
            return words[0], set()
        command, words = found, words[1:]
    return "", options | {one for param in command.params for one in (*param.opts, *param.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_exist(page):
    """``lakeops gc mark --dry-run`` in a sentence is a command, and has that option."""
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    wrong = []
    for words in re.findall(r"`lakeops ([^`\n]+)`", text):
        given = shlex.split(words.partition("\\|")[0])
        if given[0].isupper() or given[0] in {"connections", "range", "leaf", "metarange"}:
            continue  # COMMAND, a group of Airflow's command line, the bytes before an id
        left, options = (
            ("", {"--config", "--engine", "--install-completion", "--version"})
            if given[0][0] == "-"
            else _resolved(given)
        )
        own = given[: given.index("--")] if "--" in given else given
        used = {word.split("=")[0] for word in own if word.startswith("-") and word != "-"}
        if left or used - options:
            wrong.append((words, left, used - options))
    assert not wrong


def _commands(command, prefix=""):
    if isinstance(command, TyperGroup):
        for name in command.list_commands(NO_CONTEXT):
            yield from _commands(command.get_command(NO_CONTEXT, name), f"{prefix} {name}")
    else:
        yield prefix.strip(), command


ALL = dict(_commands(COMMANDS))


def test_every_command_has_its_json_described():
    section = PAGES["docs/cli.md"].split("## Output for programs")[1].split("\n## ")[0]
    cells = [row.split(" | ")[0] for row in section.splitlines()]
    told = {name.split(" --")[0] for cell in cells for name in re.findall(r"`([a-z0-9 -]+)`", cell)}
    assert sorted({*ALL} - told - {"bisect good", "bisect bad", "bisect skip"}) == []


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example_that_is_understood(name):
    assert (ALL[name].epilog or "").startswith(f"Example: lakeops {name}")
    words = shlex.split(ALL[name].epilog)[2:]
    left, options = _resolved(words)
    assert left == ""
    assert {word for word in words if word.startswith("--") and word != "--"} <= options


def _taking(option):
    return {name for name, command in ALL.items() if any(option in param.opts for param in command.params)}


def _commands_between(start, end):
    """The commands that a part of the page on the command line names, without their options."""
    text = PAGES["docs/cli.md"].split(start)[1].split(end)[0]
    return {name for name in ALL if re.search(rf"`{name}( --[a-z-]+)?`", text)}


def test_the_page_names_the_commands_that_ask_and_those_that_show_progress():
    assert _commands_between("## Questions", "\n## ") == _taking("--yes")
    assert _commands_between("* **Progress**", "\n* **") - {"bisect run"} == _taking("--progress")
    assert _commands_between("## Lists", " have no `--prefix`") - {"gc idle"} == _taking("--after") - _taking(
        "--prefix"
    )


def test_the_page_of_the_gateway_has_the_port_that_it_listens_on():
    (port,) = [param.default for param in ALL["gateway"].params if param.name == "port"]
    assert {*re.findall(r"127\.0\.0\.1:(\d+)", PAGES["docs/gateway.md"])} == {str(port)}


def test_the_json_of_a_mirror_has_these_keys():
    record = mirrors.MirrorRecord(
        "flights", mirrors.SourceReference(mirrors.SourceKind.CONNECTION, "eu", "flights"), ""
    )
    (row,) = re.findall(r"^\| `mirror create` \| .* and `mirror`: (.*) \|$", PAGES["docs/cli.md"], re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [*record.to_json()]


def test_the_transitions_on_the_page_are_those_of_the_catalog():
    rows = [row for row in PAGES["docs/catalog.md"].split("## Transitions")[1].splitlines() if row.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "lakeops" / "catalog").glob("*.py"))
    assert len(told) > 40
    assert [name for name in told if f"    def {name}(" not in code] == []
    methods = re.findall(r"((?:    @\w+\n)?)    def (\w+)\((.*?)(?=\n    (?:@\w+\n    )?def |\Z)", code, re.DOTALL)
    writing = [name for above, name, text in methods if "@write_transaction" in above or "database.write(" in text]
    assert [name for name in writing if name not in told and name[0] != "_"] == []


LIST = "--after --amount --prefix"
MOVING = "--no-progress --parallelism --pre-sign"
LAKECTL = {
    "actions runs describe": "--after --amount",
    "actions runs list": "--after --amount --branch --commit",
    "actions validate": "",
    "annotate": "--first-parent --recursive",
    "auth users": "",
    "auth groups": "",
    "auth policies": "",
    **dict.fromkeys([f"bisect {verb}" for verb in ("start", "good", "bad", "run", "reset", "log", "view")], ""),
    "branch create": "--source",
    "branch delete": "--yes",
    "branch list": LIST,
    "branch reset": "--object --prefix --yes",
    "branch revert": "--allow-empty-commit --parent-number --yes",
    "branch show": "",
    "branch-protect add": "",
    "branch-protect delete": "",
    "branch-protect list": "",
    "cat-hook-output": "",
    "cat-sst": "--amount --file",
    "cherry-pick": "--parent-number",
    "commit": "--allow-empty-commit --allow-empty-message --message --meta",
    "completion": "",
    "config": "",
    "diff": "--prefix --two-way",
    "docs": "",
    "doctor": "",
    "find-merge-base": "",
    "fs cat": "--pre-sign",
    "fs download": f"--part-size --recursive {MOVING}",
    "fs ls": "--recursive",
    "fs presign": "",
    "fs rm": "--concurrency --recursive",
    "fs stage": "--checksum --content-type --location --meta --mtime --size",
    "fs stat": "--pre-sign",
    "fs update-metadata": "--metadata",
    "fs upload": f"--content-type --recursive --source {MOVING}",
    "gc check-async": "--id",
    "gc delete-config": "",
    "gc get-config": "--json",
    "gc prepare-async": "",
    "gc set-config": "--filename",
    "identity": "",
    "import": "--allow-empty-message --from --message --meta --no-progress --to",
    "local checkout": f"--all --ref --yes {MOVING}",
    "local clone": f"--gitignore {MOVING}",
    "local commit": f"--allow-empty-message --force --message --meta {MOVING}",
    "local init": "--force --gitignore",
    "local list": "",
    "local pull": f"--force {MOVING}",
    "local status": "--local",
    "log": "--after --amount --dot --first-parent --limit --no-merges --objects --prefixes --show-meta-range-id "
    "--since --stop-at",
    "login": "",
    "merge": "--allow-empty --allow-empty-message --force --message --meta --squash --strategy",
    "plugin list": "",
    "refs-dump": "--output --poll-interval --timeout",
    "refs-restore": "--manifest --poll-interval --timeout",
    "repo create": "--default-branch --sample-data",
    "repo create-bare": "",
    "repo delete": "--yes",
    "repo list": LIST,
    "show commit": "--show-meta-range-id",
    "tag create": "--force",
    "tag delete": "",
    "tag list": LIST,
    "tag show": "",
    "usage summary": "",
}
"""The commands of ``lakectl`` and the options of each, as its reference lists them."""
OF_LAKECTL = "--base-uri --config --log-format --log-level --log-output --no-color --no-progress --verbose --version"
ROWS = [row for row in PAGES["docs/lakefs.md"].splitlines() if row.startswith("| `")]


@pytest.mark.parametrize("name", LAKECTL)
def test_every_command_and_option_of_lakectl_stands_beside_ours(name):
    """An option is one of ours with the same name, or the row of its command names it."""
    row = next((row for row in ROWS if re.search(rf"`{name}( -[^`]*)?`", row.split(" | ")[0])), None)
    assert row, "docs/lakefs.md has no row for it"
    ours = re.search(r"`lakeops ([a-z -]+?)(?: --[^`]*)?`", row.split(" | ")[1])
    same = _resolved(ours[1].split())[1] if ours else set()
    assert sorted({*LAKECTL[name].split()} - same - {*re.findall(r"--[\w-]+", row)}) == []


def test_every_option_of_lakectl_itself_has_a_row():
    told = {name for row in ROWS for name in re.findall(r"--[\w-]+", row)}
    assert sorted({*OF_LAKECTL.split()} - told) == []


def test_the_glossary_is_short_and_in_use():
    words = [row.split(" | ")[0].removeprefix("| ") for row in PAGES["docs/glossary.md"].splitlines()[4:] if row]
    assert len(words) <= 25
    others = " ".join(text for name, text in PLAIN.items() if name != "docs/glossary.md").lower()
    assert [word for word in words if word.lower() not in others] == []
