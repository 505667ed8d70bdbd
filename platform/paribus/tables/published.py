"""What a paper printed: its own table, and where its rows and columns are ours."""

from collections.abc import Sequence
from dataclasses import replace

from paribus.plan.arms import Arm
from paribus.plan.plan import Plan
from paribus.spec.table import Column as PaperColumn
from paribus.spec.table import PaperTable
from paribus.spec.table import Row as PaperRow
from paribus.spec.task import Metric, Task
from paribus.tables.table import Cell, Column, Row, Table

# What papers' tables call our tasks and metrics, where it is not their name. Papers answer the middle and high
# questions of RACE by one model; race-middle and race-high are models of their own, so they are no column of theirs.
TASKS = {"squad": "squad1", "race-all": "race", "race-middle": "", "race-high": ""}
METRICS = {
    "accuracy": "acc",
    **dict.fromkeys(("span-f1", "entity-f1", "macro-f1", "f1a", "record-f1"), "f1"),
    **dict.fromkeys(("group-em", "record-em"), "em"),
}


def paper_table(paper: PaperTable, *notes: str) -> Table:
    """The paper's own table; `notes` go first. Hyper-parameters are turned, so that each is a row."""
    columns = published_columns(paper)
    rows = [Row(row.key, row.label, row.group, published_cells(row, columns)) for row in paper.rows]
    if paper.kind == "hyperparameters":
        turned = zip(*(row.cells for row in rows), strict=True)
        rows, columns = (
            [Row(column.key, column.label, "", cells) for column, cells in zip(columns, turned, strict=True)],
            [Column(row.key, row.label, "as printed", None, published=True) for row in rows],
        )
    about = [f"Published: {cite(paper)}. {paper.protocol}", paper.notes]
    return Table(
        paper.id,
        paper.title,
        tuple(columns),
        tuple(rows),
        tuple(filter(None, [*notes, without_arm(paper), *about])),
        provenance={"paper": paper.id},
    )


def unreproduced(paper: PaperTable) -> str:
    """Why a paper's table that no experiment reproduces has no rows of ours."""
    if paper.kind == "analysis":
        return "There are no runs: an analysis, which no experiment here makes."
    if paper.kind == "hyperparameters":
        return "Settings of a paper, nothing to run: `paribus list bases` says which of them are trained with here."
    return f"There are no runs: no experiment says `reproduces: {paper.id}` yet."


def paper_row(plan: Plan, arm: Arm, paper: PaperTable) -> PaperRow | None:
    """The row of `arm`: as the experiment says, or the one that is called as the arm or the one level it departs in."""
    levels = [level for factor, level in arm.levels.items() if arm.baseline or level != plan.baseline.levels[factor]]
    said = plan.experiment.row_of(paper.id, arm.label, plan.scale)
    if said is None:
        return None
    names = [said, *(levels if arm.baseline or len(levels) == 1 else [])]
    rows = {row.key: row for row in paper.systems}
    return next((rows[key] for name in names if (key := name.lower().replace("-", "_")) in rows), None)


def paper_column(task: Task, metric: Metric, paper: PaperTable) -> PaperColumn | None:
    """The paper's column of a metric of `task`: on dev, else on test, else a correlation that it does not name."""
    name = TASKS.get(task.name, task.name.replace("-", "_"))
    wanted = [(METRICS.get(metric, metric), "dev"), (METRICS.get(metric, metric), "test")]
    if metric == "pearson":
        wanted.append(("corr", "dev"))
    columns = {(column.metric, column.split): column for column in reversed(paper.columns) if column.task == name}
    return next((columns[key] for key in wanted if key in columns), None)


def published_columns(paper: PaperTable) -> list[Column]:
    """The paper's columns as columns of a table."""
    return [
        Column(column.key, _printed_label(column), "as printed", column.higher_is_better, True, split=column.split)
        for column in paper.columns
    ]


def _printed_label(column: PaperColumn) -> str:
    """A column's label with its split where that is test and the label does not say it: ours are on dev."""
    untold = column.split == "test" and "test" not in column.label.lower()
    return f"{column.label} (test)" if untold else column.label


def comparable(column: PaperColumn) -> bool:
    """Whether a score of ours may stand in one cell with the paper's: of dev, by a metric that the paper names."""
    return column.split == "dev" and column.metric != "corr"


def of_group(row: PaperRow) -> str:
    """A row's label with its group in the paper: two groups can hold rows that are called alike."""
    return f"{row.label} ({row.group})" if row.group else row.label


def published_cells(row: PaperRow, columns: Sequence[Column]) -> tuple[Cell | None, ...]:
    """What a row of the paper has in `columns`."""
    return tuple(None if (value := row.values[column.key]) is None else Cell(value) for column in columns)


def with_published(ours: Cell | None, column: Column, row: PaperRow | None) -> Cell | None:
    """A cell of ours with what the paper has there."""
    value = row.values[column.beside] if row and column.beside else None
    return ours if value is None else replace(ours or Cell(None), published=value)


def without_arm(paper: PaperTable) -> str:
    """Which rows of the paper no arm can stand for yet, and what it would take."""
    by_reason: dict[str, list[str]] = {}
    for row in paper.rows:
        if row.key in paper.lacking:
            by_reason.setdefault(paper.lacking[row.key], []).append(row.key)
    each = (f"{', '.join(rows)} ({reason})" for reason, rows in by_reason.items())
    return f"Rows without an arm of ours: {'; '.join(each)}." if by_reason else ""


def cite(paper: PaperTable) -> str:
    """Authors, year, title and place of the table."""
    year = f" {paper.paper.year}" if paper.paper.year else ""
    return f"{paper.paper.authors}{year}, {paper.paper.title}{paper.paper.place}"
