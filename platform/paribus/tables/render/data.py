"""For programs: CSV (a line a cell) and JSON (everything). Nothing is rounded."""

import csv
import dataclasses
import io
import json

from paribus.spec.base import Spec
from paribus.tables.render.digits import printed
from paribus.tables.table import Cell, Column, Row, Table

FIELDS = (
    *("group", "row", "column", "split", "paper", "ours", "n", "difference", "low", "high", "seeds"),
    *("verdict", "p", "sesoi", "mde", "more_seeds", "hours", "best", "runs", "warnings"),
)


def as_csv(table: Table) -> str:
    """A line a cell, with FIELDS: those with a value, and all of the arms', so that an arm without runs is seen.

    `seeds` and `runs` are separated by spaces, rows and columns are keys. p is corrected for the table's family.
    `warnings` are the table's, what a reader must know before any number, in every line: lines may be parted. Text
    that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None or (row.arm and not column.published):
                writer.writerow(map(_safe, [*_line(row, column, cell), " ".join(table.warnings) or None]))
    return text.getvalue()


def _line(row: Row, column: Column, cell: Cell | None) -> list[object]:
    place = [row.group, row.key, column.key, column.split]
    if cell is None:
        return [*place, *(None,) * (len(FIELDS) - len(place) - 1)]
    value = printed(cell.value) if isinstance(cell.value, list) else cell.value
    found, verdict = cell.difference, cell.verdict
    return [
        *place,
        *((value, None) if column.published else (cell.published, value)),
        len(cell.samples) or None,
        *((found.mean, found.low, found.high) if found else (None, None, None)),
        " ".join(str(sample.seed) for sample in cell.samples),
        *(
            (verdict.told, verdict.p, verdict.sesoi, verdict.detectable, verdict.more_seeds, verdict.hours)
            if verdict
            else (None,) * 6
        ),
        int(cell.best) if column.judged and value is not None else None,
        " ".join(sample.run for sample in cell.samples),
    ]


def _safe(value: object) -> object:
    """Text of a user that a spreadsheet would run, as text. Numbers stay numbers."""
    return (
        f"'{value}" if isinstance(value, str) and value.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    )


def as_json(table: Table) -> str:
    """The whole table, with each cell's samples and the keys of their runs."""
    return json.dumps(dataclasses.asdict(table), indent=1, ensure_ascii=False, default=_spec) + "\n"


def _spec(value: object) -> object:
    assert isinstance(value, Spec)
    return value.model_dump(mode="json")
