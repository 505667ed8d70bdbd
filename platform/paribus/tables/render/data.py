"""For programs: CSV (a line a cell) and JSON (everything). Nothing is rounded."""

import csv
import dataclasses
import io
import json

from paribus.tables.render.digits import printed
from paribus.tables.table import Cell, Column, Row, Table

FIELDS = ("row", "column", "paper", "ours", "n", "difference", "low", "high", "seeds")


def as_csv(table: Table) -> str:
    """A line a cell, with FIELDS: those with a value, and all of the arms', so that an arm without runs is seen.

    `seeds` are separated by spaces, rows and columns are keys.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None or (row.arm and not column.published):
                writer.writerow(_line(row, column, cell))
    return text.getvalue()


def _line(row: Row, column: Column, cell: Cell | None) -> list[object]:
    if cell is None:
        return [row.key, column.key, *(None,) * (len(FIELDS) - 2)]
    value = printed(cell.value) if isinstance(cell.value, list) else cell.value
    found = cell.difference
    return [
        row.key,
        column.key,
        *((value, None) if column.published else (None, value)),
        len(cell.samples) or None,
        *((found.mean, found.low, found.high) if found else (None, None, None)),
        " ".join(str(sample.seed) for sample in cell.samples),
    ]


def as_json(table: Table) -> str:
    """The whole table, with each cell's samples and the keys of their runs."""
    return json.dumps(dataclasses.asdict(table), indent=1, ensure_ascii=False) + "\n"
