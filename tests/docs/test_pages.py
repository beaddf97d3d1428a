"""The pages say what the package has: every error, setting, operator and command, and links that lead somewhere."""

import re
import sys
from importlib import import_module

import pytest
from support.doc_pages import DOCS, ROOT, first_cells, links

from lakeops.model import errors
from lakeops.settings import Settings

PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
REFERENCES = re.findall(r"^::: (\S+)$", (DOCS / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
CLASSES = [getattr(errors, name) for name in errors.__all__]
ERRORS = [
    *((which.kind, which) for which in CLASSES),
    *((kind, which) for which, some in errors.KINDS.items() for kind in some),
]


@pytest.mark.parametrize(("kind", "error"), ERRORS, ids=[kind for kind, _ in ERRORS])
def test_every_kind_of_error_has_an_entry(kind, error):
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{kind}` \| (.*)$", page, re.MULTILINE)
    assert row, f"docs/troubleshooting.md has no row for {kind}"
    assert f"`{error.__name__}`" in row[1]
    if kind == "error":
        return  # the root of all, which no call raises
    _, happened, advice = row[1].rstrip(" |").rsplit(" | ", 2)
    assert len(happened.split()) > 4, "what happened and why"
    assert "`lakeops " in advice, "a command to run"


def test_no_entry_is_of_a_kind_that_is_gone():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    own = {"usage", "aborted", "interrupted", "internal"}  # the command line's
    assert {*first_cells(page)} - own == {kind for kind, _ in ERRORS}
    for kind in own:
        row = re.search(rf"^\| `{kind}` \| (.+) \| (.+) \|$", page, re.MULTILINE)
        assert row, kind
        assert len(row[1].split()) > 4, "what happened and why"
        assert "lakeops " in row[2] or "run the command again" in row[2], "what to do"


def test_every_setting_is_described_with_its_default():
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    for name, field in Settings.model_fields.items():
        row = re.search(rf"^\| `{name}` \| `LAKEOPS_{name.upper()}` \| (.*?) \| ", page, re.MULTILINE)
        assert row, f"docs/settings.md has no row for {name}"
        if field.default_factory is None:
            default = field.default
            shown = "none" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
            assert row[1].replace(".0`", "`") == shown.replace(".0`", "`"), name


def test_every_operator_and_sensor_is_in_the_reference():
    page = (DOCS / "provider.md").read_text(encoding="utf-8")
    bases = {"LakeopsOperator", "LakeopsPublishOperator"}
    for room in ("operators/__init__.py", "sensors.py"):
        text = (ROOT / "lakeops" / "airflow" / room).read_text(encoding="utf-8")
        names = {*re.findall(r"\b(Lakeops\w+(?:Operator|Sensor))\b", text)} - bases
        assert len(names) > 4
        assert sorted(name for name in names if f"| `{name}(" not in page) == []


@pytest.mark.parametrize("name", REFERENCES)
def test_what_the_api_reference_names_exists(name):
    module, _, attribute = name.rpartition(".")
    assert getattr(import_module(module), attribute).__doc__


def test_the_command_reference_has_every_command(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "build_hooks", raising=False)
    hooks = import_module("build_hooks")
    page = hooks.on_page_markdown((DOCS / "commands.md").read_text(encoding="utf-8"))
    assert page.count("\n### lakeops ") > 50
    headings = re.findall(r"^## .*$", page, re.MULTILINE)
    assert len(headings) == len({*headings}) > 3
    for line in ("### lakeops merge", "`--strategy` `source-wins\\|dest-wins`", "lakeops merge lakefs://REPO/SOURCE"):
        assert line in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


DECISIONS = sorted((DOCS / "adr").glob("0*.md"))


def test_decisions_are_numbered_and_listed_in_order():
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == sorted(set(numbers))  # a page that another one took in is gone, and its number with it
    titles = [page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").split(": ", 1) for page in DECISIONS]
    rows = [f"| [{number}]({page.name}) | {title} |" for (number, title), page in zip(titles, DECISIONS, strict=True)]
    listed = [line for line in (DOCS / "adr" / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert [line.rsplit(" ", 2)[0] for line in listed] == rows


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name[:4])
def test_a_decision_says_all_that_it_has_to(page):
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^\*\*Status\*\*: (accepted|superseded)", text, re.MULTILINE)
    assert re.search(r"^\*\*Date\*\*: \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    for section in ("Context", "Decision", "Evidence", "What would violate it"):
        assert text.count(f"\n## {section}\n") == 1, section
