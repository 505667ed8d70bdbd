"""Golden files are in tests/golden; after a change that is meant, write them anew with PARIBUS_GOLDEN=write."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paribus.errors import SpecError
from paribus.plan.plan import plan
from paribus.project import Project
from paribus.spec.experiment import Claim
from paribus.store.store import Store
from paribus.tables.experiment import experiment_table
from paribus.tables.published import paper_table
from paribus.tables.render import FORMATS, digits, latex, render, write_all
from paribus.tables.render.terminal import show
from paribus.tables.stats import Difference
from paribus.tables.table import Cell, Column, Row, Sample, Table
from paribus.tables.verdict import Checked, Verdict

GOLDEN = Path(__file__).parents[1] / "golden"


def ran(arm: str) -> dict[str, object]:
    """What a table knows of a run."""
    return {"run": "run-a0", "arm": arm, "seed": 0, "state": "done", "stages": ["pack-1", "pretrain-1"]}


SAMPLES = (Sample(0, "run-a0", 4.5120001), Sample(1, "run-a1", 4.4999999), Sample(2, "run-a2", 4.5))
NULL = Verdict("inconclusive", 0.2, 0.02, False, 0.0311, 4, family=2, seconds_a_seed=5400.0)
TABLE = Table(
    name="ours@tiny",
    title="50% of <A> & B_1 | C",
    question="Is #1 better than $2?",
    expect="no",
    columns=(
        Column("squad2_f1", "SQuAD 2.0 F1", "as printed", True, published=True, split="test"),
        Column("batch", "Batch", "as printed", None, published=True),
        Column("remark", "Remark", "as printed", None, published=True),
        Column("mlm.loss", "MLM loss", "nats", False, published=False, judged=True, split="test"),
        Column("cola.mcc", "CoLA mcc", "points", True, published=False, judged=True, beside="cola", split="dev"),
    ),
    rows=(
        Row(
            "reference",
            "reference",
            "Published only",
            (Cell(76.3), Cell([16, 32]), Cell("a_b & c"), None, Cell(None, published=60.6)),
        ),
        Row(
            "static",
            "static",
            "Arms",
            (
                Cell(78.3),
                Cell(131072),
                None,
                Cell(4.5, SAMPLES, best=True),
                Cell(-1.23456, SAMPLES[:2], published=52.1),
            ),
            arm=True,
            baseline=True,
        ),
        Row(
            "dynamic",
            "dynamic",
            "Arms",
            (
                Cell(84.0),
                Cell(3e18),
                None,
                Cell(4.4876, SAMPLES, Difference(-0.0124, -0.0300, 0.0052, 3), verdict=NULL, best=True),
                Cell(
                    12.0,
                    SAMPLES,
                    Difference(13.23, 13.23, 13.23, 2),
                    verdict=Verdict("helps", 0.01),
                    best=True,
                    published=50,
                ),
            ),
            arm=True,
        ),
        Row(
            "one",
            "one seed",
            "Arms",
            (*[None] * 4, Cell(0.04, SAMPLES[:1], Difference(-0.04, None, None, 1))),
            arm=True,
        ),
        Row("none", "no runs yet", "Arms", (*[None] * 4, Cell(None, published=48.5)), arm=True),
        Row("unigram", "unigram frequencies", "Learnt nothing", (None, None, None, Cell(6.0, stage="pack-1"), None)),
    ),
    notes=("Ours: `scale` tiny; 100% of it.", "A second note."),
    provenance={"experiment": "ours", "runs": [ran(arm) for arm in ("static", "dynamic", "one")]},
    warnings=("Not finished: of 6 runs 1 missing.",),
    claims=(Checked(Claim(arm="dynamic", metric="cola.mcc", direction="better"), "met", "helps"),),
)


def golden(name: str, text: str) -> str:
    path = GOLDEN / name
    if os.environ.get("PARIBUS_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def terminal(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(show(table, width))
    written = console.file
    assert isinstance(written, io.StringIO)
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_reads_as_its_golden_file(format: str) -> None:
    text = render(TABLE, format)
    assert text == golden(f"table.{format}", text)


@pytest.mark.parametrize("width", [60, 120])
def test_the_terminal_reads_as_its_golden_file(width: int) -> None:
    text = terminal(TABLE, width)
    assert text == golden(f"table-{width}.txt", text)


def test_a_store_becomes_its_golden_table(project: Project, store: Store, fill: Callable[..., None]) -> None:
    planned = plan(project, "masks", "mini")
    fill(store, planned)
    text = render(experiment_table(planned, store, project.tables.get("roberta-table1")), "md")
    assert text == golden("masks.md", text)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_number_is_lost_in_a_narrow_terminal(width: int) -> None:
    text = terminal(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("76.3", "131,072", "4.500 (n=3)", "[-0.030, +0.005]", "+13.2 (pairs=2)", "6.000"):
        assert number in text


def test_at_any_width_each_line_of_each_cell_stays_whole() -> None:
    ours = [
        Column(name, name, "points", True, published=False)
        for name in ("generator MLM loss", "replaced precision", "recall", "replaced AUC", "acceptability mcc", "f1")
    ]
    differences = [Difference(-1.0 - n, -(10.0**n) / 7, 10.0 ** (n / 2) / 3, 3) for n in range(6)]
    cells = [Cell(11.1 * n, SAMPLES, difference) for n, difference in enumerate(differences)]
    table = replace(TABLE, columns=tuple(ours), rows=(Row("nes", "a label of some length", "Arms", tuple(cells)),))
    wanted = Counter(line for cell, column in zip(cells, ours, strict=True) for line in digits.lines(cell, column))
    for width in range(60, 200):
        text = terminal(table, width)
        assert all(text.count(line) >= count for line, count in wanted.items()), f"at width {width}"


def test_json_has_everything_with_the_keys_of_the_runs() -> None:
    told = json.loads(render(TABLE, "json"))
    static = told["rows"][1]["cells"][3]
    assert static["value"] == 4.5 and static["samples"][0] == {"seed": 0, "run": "run-a0", "value": 4.5120001}
    assert told["rows"][5]["cells"][3]["stage"] == "pack-1"
    assert told["provenance"]["experiment"] == "ours"


def test_csv_is_a_line_a_cell_and_rounds_nothing() -> None:
    lines = list(csv.DictReader(io.StringIO(render(TABLE, "csv"))))
    places = [(row, *pair) for row in TABLE.rows for pair in zip(TABLE.columns, row.cells, strict=True)]
    assert len(lines) == sum(bool(cell or (row.arm and not column.published)) for row, column, cell in places)
    found = {(line["row"], line["column"]): line for line in lines}
    assert float(found["static", "cola.mcc"]["ours"]) == -1.23456
    assert found["static", "squad2_f1"]["paper"] == "78.3" and found["static", "squad2_f1"]["ours"] == ""
    both = found["dynamic", "cola.mcc"]
    assert (both["paper"], both["ours"]) == ("50", "12.0")
    loss = found["dynamic", "mlm.loss"]
    assert (loss["n"], loss["difference"], loss["low"], loss["seeds"]) == ("3", "-0.0124", "-0.03", "0 1 2")


def test_csv_tells_measures_apart_by_group_and_split() -> None:
    ours, theirs = replace(TABLE.rows[1], cells=(Cell(70.1),)), Row("static", "static", "Published only", (Cell(70.2),))
    for split in ("dev", "test"):
        table = replace(TABLE, columns=(replace(TABLE.columns[0], split=split),), rows=(theirs, ours))
        lines = csv.DictReader(io.StringIO(render(table, "csv")))
        assert [(line["group"], line["split"]) for line in lines] == [("Published only", split), ("Arms", split)]


def test_html_is_well_formed_and_needs_nothing_else() -> None:
    class Tags(HTMLParser):
        open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert "src" not in dict(attrs) and tag != "script"
            assert (dict(attrs).get("href") or "#").startswith("#")
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Tags()
    page = render(TABLE, "html")
    parser.feed(page)
    assert parser.open == []
    assert "50% of &lt;A&gt; &amp; B_1 | C" in page and "url(" not in page


class Places(HTMLParser):
    """The ids of a page and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str | None] = []
        self.links: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []


def test_each_cell_of_ours_leads_to_its_runs_with_their_states_and_stages() -> None:
    text = render(TABLE, "html")
    found = Places(text)
    assert len(found.ids) == len(set(found.ids)) == 3 and {f"#{id}" for id in found.ids} == set(found.links)
    assert len(found.links) == 5 + 3  # a cell each, and the name of each arm above its runs
    assert 'aria-label="n=3, runs of dynamic">(n=3)</a>' in text
    listed = text[text.index("<h2>Runs</h2>") :]
    assert listed.count("<code>pretrain-1</code>") == 3 and "dynamic</bdi></a>: 1 done" in listed


def test_markdown_has_as_many_cells_in_every_line() -> None:
    lines = [line for line in render(TABLE, "md").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(TABLE.columns) + 2}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(tmp_path: Path, project: Project) -> None:
    papers = [paper_table(project.tables.get(name)) for name in project.tables]
    tables = [TABLE, *papers, *map(hostile, HOSTILE)]
    body = "\n\\clearpage\n".join(render(table, "tex") for table in tables)
    packages = "".join(rf"\usepackage{{{name}}}" for name in re.findall(r"usepackage{(\w+)}", body.splitlines()[0]))
    text = rf"\documentclass{{article}}{packages}\begin{{document}}" + body + r"\end{document}"
    (tmp_path / "document.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "document.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]


@given(st.text('\\{}[]$&#%_~^<>|"`ab\n'))
def test_latex_text_leaves_no_markup(text: str) -> None:
    plain = re.sub(r"\\[a-z]+\{\}|\\[{}$&#%_]|\{\[\}|\{\]\}|\{''\}", "", latex.escape(text))
    assert not set(plain) & set('\\{}[]$&#%_~^<>|"`\n')


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_a_difference_has_a_sign_unless_it_rounds_to_nothing(value: float, decimals: int) -> None:
    text = digits.signed(value, decimals)
    assert float(text) == pytest.approx(value, abs=0.51 * 10**-decimals)
    assert text[0] in "+-" if float(text) else text[0] == "0"


def test_write_all_writes_every_format(tmp_path: Path) -> None:
    paths = write_all(TABLE, tmp_path / "tables")
    assert [path.name for path in paths] == [f"ours@tiny.{format}" for format in FORMATS]
    assert all(path.read_text(encoding="utf-8") == render(TABLE, path.suffix[1:]) for path in paths)


def test_an_unknown_format_is_an_error_that_suggests() -> None:
    with pytest.raises(SpecError, match=r"no format 'htm' \(did you mean html\?\)"):
        render(TABLE, "htm")


def test_tables_load_nothing_heavy() -> None:
    heavy = "{'torch', 'mlflow', 'optuna', 'scipy'}"
    code = f"import sys, paribus.tables.render.terminal; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- what is said of a difference ------------------------------------------------------------------------------------


def test_a_null_says_what_could_have_been_seen_and_what_it_would_take() -> None:
    column = TABLE.columns[3]
    assert digits.lines(TABLE.rows[2].cells[3], column)[3:] == ["inconclusive", "MDE 0.032", "+4 seeds", "(6 h)"]
    far = replace(NULL, more_seeds=None)
    assert digits.verdict(far, 3)[2:] == ["+10,000 seeds or more"]
    assert digits.verdict(replace(NULL, sesoi=None, more_seeds=None), 3) == ["inconclusive", "MDE 0.032"]
    same = replace(NULL, kind="equivalent", within_sesoi=True, more_seeds=None)
    assert digits.verdict(same, 3) == ["equivalent \u00b10.02", "MDE 0.032"]
    assert digits.verdict(Verdict("helps", 0.01, 0.02, True), 3) == ["helps, < 0.02"]


@pytest.mark.parametrize(
    ("format", "bold"),
    [
        ("md", "**4.500 (n=3)**"),
        ("tex", r"\textbf{4.500 (n=3)}"),
        ("html", "<strong>4.500&nbsp;<a "),
    ],
)
def test_the_tied_set_is_bold_and_nothing_else(format: str, bold: str) -> None:
    text = render(replace(TABLE, warnings=()), format)
    assert bold in text and text.count(bold[: bold.index("4")]) == (6 if format == "md" else 3)  # ** also ends it


def test_a_warning_stands_before_the_first_number() -> None:
    for text in (terminal(TABLE, 100), *(render(TABLE, format) for format in ("md", "tex", "html"))):
        assert -1 < text.index("Not finished: of 6 runs 1 missing") < text.index("76.3")


# --- names that are markup, formulas, paths, or too long -------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    "%_&#$\\{}~^[red]|`*",
    "../../etc/passwd",
    "\U0001f600 smile \U0001f1e9\U0001f1ea",
    "\u202eright to left\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "x" * 300,
    "=HYPERLINK(1)",
    "+1",
    "-1+cmd",
    "@sum",
    "\t=1",
    "two\nlines\x1b[31m",
)


def hostile(name: str) -> Table:
    columns = (replace(TABLE.columns[3], key=f"{name}.f1", label=f"{name} f1"), *TABLE.columns[4:])
    rows = (Row(name, name, "Arms", TABLE.rows[2].cells[3:], arm=True),)
    provenance = {"runs": [ran(name)]}
    return replace(
        TABLE, name=name, title=name, question=name, columns=columns, rows=rows, notes=(name,), provenance=provenance
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_no_markup_in_html(name: str) -> None:
    class Tags(HTMLParser):
        seen: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.add(tag)
            assert {name for name, _ in attrs} <= {
                "class",
                "href",
                "id",
                "scope",
                "colspan",
                "title",
                "lang",
                "charset",
                "tabindex",
                "role",
                "aria-label",
                "data-value",
                "content",
                "name",
            }

    parser = Tags()
    text = render(hostile(name), "html")
    parser.feed(text)
    assert "script" not in parser.seen
    assert {f"#{id}" for id in Places(text).ids} == set(Places(text).links)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_no_formula_and_stays_itself_in_csv(name: str) -> None:
    (line,) = (
        line for line in csv.DictReader(io.StringIO(render(hostile(name), "csv"))) if line["column"] == "cola.mcc"
    )
    assert line["row"].removeprefix("'") == name and line["row"][0] not in "=+-@\t"
    assert float(line["difference"]) == 13.23 and line["verdict"] == "helps"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_breaks_no_terminal_and_no_markdown(name: str) -> None:
    text = terminal(hostile(name), 120)
    assert "\x1b" not in text and "\u202e" not in text and "13.2" in text
    if "[red]" in name:
        assert "[red]" in text
    lines = [line for line in render(hostile(name), "md").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_a_file_in_the_folder_it_belongs_to(name: str, tmp_path: Path) -> None:
    paths = write_all(hostile(name), tmp_path / "tables")
    assert {path.resolve().parent for path in paths} == {(tmp_path / "tables").resolve()}
    assert all(path.is_file() for path in paths) and len(set(paths)) == len(FORMATS)


def test_two_names_that_look_alike_as_files_stay_two(tmp_path: Path) -> None:
    assert len({path for name in ("a/b", "a:b", "a-b") for path in write_all(hostile(name), tmp_path)}) == 3 * len(
        FORMATS
    )


@pytest.mark.parametrize("format", ["md", "tex", "html", "terminal"])
def test_long_names_that_begin_alike_stay_apart(format: str) -> None:
    rows = [replace(TABLE.rows[2], key=name, label=name) for name in ("x" * 90 + end for end in "abc")]
    table = replace(TABLE, rows=tuple(rows), notes=())
    text = terminal(table, 120) if format == "terminal" else render(table, format)
    shown = set(re.findall("x{70,}\u2026(?: [0-9])?", text.replace(r"\ldots{}", "\u2026")))
    assert len(shown) == 3 and {len(name) for name in shown} == {digits.LONGEST}


@given(st.lists(st.text("ab", max_size=9)), st.integers(5, 9))
def test_short_names_are_as_many_as_the_names(names: list[str], longest: int) -> None:
    found = digits.short(names, longest)
    assert len(set(found.values())) == len(set(names))
    assert all(len(text) <= longest and (text == name or len(name) > longest) for name, text in found.items())


def test_csv_says_why_a_verdict_is_refused() -> None:
    refused = Cell(12.0, SAMPLES, Difference(1.0, 0.5, 1.5, 3), verdict=Verdict("refused", why="another learning rate"))
    table = replace(TABLE, columns=TABLE.columns[4:], rows=(Row("b", "b", "Arms", (refused,), arm=True),))
    (line,) = csv.DictReader(io.StringIO(render(table, "csv")))
    assert line["verdict"] == "refused: another learning rate" and line["p"] == ""


def test_a_difference_that_is_told_from_nothing_does_not_round_to_nothing() -> None:
    column = Column("task.accuracy", "accuracy", "points", True, published=False)
    found = Difference(0.03, 0.012, 0.048, 3, 0.007)
    samples = tuple(Sample(seed, f"run-{seed}", 78.1) for seed in range(3))
    cell = Cell(78.1, samples, found, verdict=Verdict("helps", 0.01))
    assert digits.below(cell, column)[:2] == ["+0.03", "[+0.01, +0.05]"]
    assert digits.below(replace(cell, verdict=Verdict("inconclusive", 0.5)), column)[:2] == ["0.0", "[0.0, 0.0]"]


def test_hours_are_plain_numbers() -> None:
    assert [digits.hours(count) for count in (0.3, 99.6, 1234.0)] == ["0.3 h", "100 h", "1,234 h"]
