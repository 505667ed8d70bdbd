"""Tables, a row an item: TSV (GLUE, XNLI, CODAH), CSV (SWAG), JSON lines (SuperGLUE), rows of a `datasets` set."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from paribus.data.formats.files import from_json, lines, text_of
from paribus.data.formats.items import ChoiceItem, Defect, Item, PairItem, RegressionItem, Row, SentenceItem
from paribus.errors import DataError
from paribus.project import Source
from paribus.spec.task import Column, Columns, Csv, JsonLines, MultipleChoice, Pair, Regression, Sentence, Task, Tsv

Record = tuple[str, Mapping[Any, Any]]
"""Where a row is, and its cells by column."""

TARGETS = ("label", "score")


class Refused(Exception):
    """A row that is no item; says why."""


def read_tsv(format: Tsv, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """Rows of cells parted by tabs."""
    rows = ((number, line.split("\t")) for number, line in lines(source))
    return items(task, format.columns, _table(format.columns, format.header, format.where, rows, source, test), test)


def read_csv(format: Csv, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """Rows of cells parted by commas, quoted where need be."""
    reader = csv.reader(io.StringIO(text_of(source), newline=""), strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for cells in reader:
                yield reader.line_num, cells
        except csv.Error as error:
            raise DataError(f"{source}, line {reader.line_num}: not CSV ({error})") from None

    return items(task, format.columns, _table(format.columns, True, {}, rows(), source, test), test)


def read_jsonl(format: JsonLines, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """One JSON object a line."""
    columns = [column for _, column in flat(format.columns)]
    records = (
        record if isinstance(record, Defect) else (record[0], {column: _dig(record[1], column) for column in columns})
        for record in objects(source)
    )
    return items(task, format.columns, records, test)


def objects(source: Source) -> Iterator[tuple[str, dict[str, Any]] | Defect]:
    """The JSON object of each line."""
    for number, line in lines(source):
        found = parsed(line)
        yield Defect(f"line {number}", found) if isinstance(found, str) else (f"line {number}", found)


def parsed(line: str) -> dict[str, Any] | str:
    """The JSON object in a line, or what is wrong with it."""
    try:
        found = from_json(line)
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg})"
    return found if isinstance(found, dict) else f"not a JSON object, but {line[:40]!r}"


def label_of(task: Task, value: Any, test: bool) -> str | None:
    """A label by its name. In a test set, None where there is none or it is -1. Raises Refused for any other."""
    labels = getattr(task, "labels", ())
    if str(value) in labels:
        return str(value)
    if test and (value is None or str(value) in ("-1", "")):
        return None
    raise Refused(f"label {value!r} is not one of the task's: {', '.join(labels)}")


def items(task: Task, columns: Columns, records: Iterator[Record | Defect], test: bool) -> Iterator[Row]:
    """The item of each record: what `columns` name, put together by the kind of task."""
    texts = [(field, column) for field, column in flat(columns) if field in ("sentence", "sentence1", "sentence2")]
    for row, record in enumerate(records):
        if isinstance(record, Defect):
            yield record
            continue
        place, cells = record
        try:
            yield _item(task, columns, str(row), cells, test)
        except Refused as why:
            yield Defect(place, str(why))
        else:
            empty = [field for field, column in texts if not cells[column]]
            yield from (Defect(place, f"{field} is empty", left_out=False) for field in empty)


def _item(task: Task, columns: Columns, number: str, cells: Mapping[Any, Any], test: bool) -> Item:
    def cell(field: str, default: Any = None) -> Any:
        column = columns.get(field)
        return default if column is None else cells.get(column, default)

    def text(field: str) -> str:
        value = cell(field, "")
        if not isinstance(value, str):
            raise Refused(f"{field}: a text was expected, found {value!r}")
        return value

    name = str(cell("id", number))
    match task:
        case Sentence():
            label = label_of(task, cell("label"), test)
            return SentenceItem(name, text("sentence"), label, text("source"), text("note"))
        case Pair():
            label = label_of(task, cell("label"), test)
            return PairItem(name, text("sentence1"), text("sentence2"), label, text("group"), text("option"))
        case Regression():
            return RegressionItem(name, text("sentence1"), text("sentence2"), _number(cell("score"), test))
        case MultipleChoice():
            options = _options(columns["options"], cells)
            right = place_of(cell("label"), len(options), test)
            return ChoiceItem(name, text("context"), text("question"), options, right, text("part"))
    raise DataError(f"task {task.name}: kind {task.kind!r} has no rows")


def _options(column: Any, cells: Mapping[Any, Any]) -> tuple[str, ...]:
    found = [cells[each] for each in column] if isinstance(column, tuple) else cells[column]
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(option, str) for option in found):
        raise Refused(f"options: at least two texts were expected, found {found!r}")
    return tuple(found)


def place_of(value: Any, count: int, test: bool) -> int | None:
    """The number of an option, as `label_of` has it for labels."""
    if str(value) in map(str, range(count)):
        return int(value)
    if test and (value is None or str(value) in ("-1", "")):
        return None
    raise Refused(f"label {value!r} is not the number of an option, 0 to {count - 1}")


def _number(value: Any, test: bool) -> float | None:
    if test and value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Refused(f"score {value!r} is not a finite number")
    return number


def flat(columns: Columns) -> list[tuple[str, Column]]:
    """Each column with the field that it is for."""
    return [
        (field, column)
        for field, named in columns.items()
        for column in (named if isinstance(named, tuple) else (named,))
    ]


def _table(
    columns: Columns,
    header: bool,
    where: Mapping[str, str],
    rows: Iterator[tuple[int, list[str]]],
    source: Source,
    test: bool,
) -> Iterator[Record | Defect]:
    """The named cells of each row that `where` lets through."""
    wanted = flat(columns)
    if header:
        names = next(rows)[1]
        width, expected = len(names), f"the header's {len(names)}"
        missing = [column for field, column in wanted if column not in names and not (test and field in TARGETS)]
        if missing:
            raise DataError(
                f"{source}, line 1: no column {missing[0]!r}; needed {', '.join(str(c) for _, c in wanted)}; "
                f"found {', '.join(names)}"
            )
        places: dict[Column, int] = {column: names.index(str(column)) for _, column in wanted if column in names}
        checks = [(names.index(name), value) for name, value in where.items() if name in names]
    else:
        places = {column: int(column) for _, column in wanted}
        width, checks = max(places.values()) + 1, []
        expected = str(width)
    for number, cells in rows:
        if len(cells) != width:
            yield Defect(f"line {number}", f"{len(cells)} columns, expected {expected}")
        elif all(cells[place] == value for place, value in checks):
            yield f"line {number}", {column: cells[place] for column, place in places.items()}


def _dig(data: Any, column: Column) -> Any:
    """The value at a dotted path, None where there is none."""
    for key in str(column).split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data
