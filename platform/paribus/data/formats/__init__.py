"""Labelled items and the files they come in.

    items.py   the items, and the JSON lines in which stages pass them on
    files.py   text out of files and archives
    rows.py, squad.py, conll.py, race.py, superglue.py, blimp.py, winograd.py, hub.py   a reader a family of formats

A reader is a function (format, task, source, test) to rows; `READERS` says which.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.data.formats.blimp import read_blimp
from paribus.data.formats.conll import read_conll
from paribus.data.formats.files import save
from paribus.data.formats.hub import read_hub
from paribus.data.formats.items import Answer as Answer
from paribus.data.formats.items import ChoiceItem as ChoiceItem
from paribus.data.formats.items import Defect as Defect
from paribus.data.formats.items import Item as Item
from paribus.data.formats.items import MinimalPairItem as MinimalPairItem
from paribus.data.formats.items import PairItem as PairItem
from paribus.data.formats.items import RegressionItem as RegressionItem
from paribus.data.formats.items import Row as Row
from paribus.data.formats.items import SentenceItem as SentenceItem
from paribus.data.formats.items import SpanItem as SpanItem
from paribus.data.formats.items import TaggingItem as TaggingItem
from paribus.data.formats.items import read_items as read_items
from paribus.data.formats.items import split_select as split_select
from paribus.data.formats.items import write_items as write_items
from paribus.data.formats.race import read_race
from paribus.data.formats.rows import read_csv, read_jsonl, read_tsv
from paribus.data.formats.squad import read_squad, squad
from paribus.data.formats.superglue import read_copa, read_multirc, read_record, read_wic, read_wsc
from paribus.data.formats.winograd import read_winograd
from paribus.errors import DataError
from paribus.project import Source
from paribus.spec.task import (
    Blimp,
    Conll,
    Copa,
    Csv,
    Folder,
    Format,
    Hub,
    JsonLines,
    MultiRc,
    Race,
    Record,
    Squad,
    Task,
    Tsv,
    Wic,
    Winograd,
    Wsc,
)

READERS: dict[type[Format], Callable[[Any, Task, Source, bool], Iterator[Row]]] = {
    Tsv: read_tsv,
    Csv: read_csv,
    JsonLines: read_jsonl,
    Squad: read_squad,
    Conll: read_conll,
    Race: read_race,
    Copa: read_copa,
    MultiRc: read_multirc,
    Record: read_record,
    Wic: read_wic,
    Wsc: read_wsc,
    Winograd: read_winograd,
    Blimp: read_blimp,
}

TOLERATED = 0.01
"""Share of rows that may be unreadable; more is taken for another format."""


@dataclass(frozen=True)
class Reading:
    """What a file holds."""

    items: list[Item]
    defects: list[Defect]
    """In order of place."""

    @property
    def left_out(self) -> int:
        """How many rows could not be read."""
        return sum(defect.left_out for defect in self.defects)

    def summary(self) -> list[str]:
        """A line for each kind of defect, with how many there are and the first."""
        kinds: dict[tuple[bool, str], list[Defect]] = {}
        for defect in self.defects:
            kinds.setdefault((defect.left_out, re.sub(r"""'.*'|".*"|\d+""", "", defect.what)), []).append(defect)
        return [
            f"{len(found)} of {len(self.items) + self.left_out} rows {'left out' if left_out else 'odd but kept'}; "
            f"{'the first' if len(found) > 1 else 'it'} is {found[0]}"
            for (left_out, _), found in kinds.items()
        ]


def read(task: Task, source: Source, test: bool = False) -> Reading:
    """The items of a file in the format that the task names, or that of its kind; `.gz` is read as it is.

    Quotes are plain characters (but in CSV), and no string stands for a missing value. A row that cannot be read is
    left out and said; in a `test` file, labels may be missing or -1. Raises DataError, with file and line, for a file
    that is not UTF-8, empty or cut short, and where more than one row in a hundred cannot be read.
    """
    named = task.data if isinstance(task.data, Folder) else None
    format = (test and named and named.test_format) or (named and named.format) or task.own
    if format is None:
        raise DataError(f"task {task.name}: kind {task.kind!r} has no file format")
    return _collected(READERS[type(format)](format, task, source, test), str(source))


def read_split(hub: Hub, task: Task, split: str) -> Reading:
    """The items of a split of a set on the Hub, as `read` has them. Raises DataError where it cannot be had."""
    return _collected(read_hub(hub, task, split), f"{hub.name} {split}")


def _collected(found: Iterator[Row], source: str) -> Reading:
    reading = Reading([], [])
    for row in found:
        if isinstance(row, Defect):
            reading.defects.append(row)
        else:
            reading.items.append(row)
    rows = len(reading.items) + reading.left_out
    if reading.left_out > TOLERATED * rows:
        first = next(defect for defect in reading.defects if defect.left_out)
        others = f" ({reading.left_out} of {rows} rows cannot be read)" if reading.left_out > 1 else ""
        raise DataError(f"{source}, {first}{others}")
    if not rows:
        raise DataError(f"{source}: holds no items")
    return reading


HEADERS = {"pair": "index\tsentence1\tsentence2\tlabel\n", "regression": "index\tsentence1\tsentence2\tscore\n"}


def write(path: Path, items: Sequence[Item]) -> None:
    """Write items of one kind in its own format; `read` gives the same items back.

    In CoLA's TSV and CoNLL columns an item's id is its place in the file. Raises DataError for text that the format
    cannot hold (a tab or a line break in a TSV, any blank inside a CoNLL word).
    """
    if isinstance(items[0], SpanItem):
        save(path, squad(items))
    else:
        save(path, HEADERS.get(items[0].kind, "") + "".join(_rows(path, item) for item in items))


def _rows(path: Path, item: Item) -> str:
    """An item as the lines of a TSV or CoNLL file."""
    match item:
        case SentenceItem():
            return _row(path, (item.source, str(item.label), item.note, item.sentence), "\t")
        case PairItem():
            return _row(path, (item.id, item.sentence1, item.sentence2, str(item.label)), "\t")
        case RegressionItem():
            return _row(path, (item.id, item.sentence1, item.sentence2, str(item.score)), "\t")
        case TaggingItem():
            return "".join(_row(path, cells, " ") for cells in zip(item.words, item.labels, strict=True)) + "\n"
    raise TypeError(f"items of kind {item.kind} are not written row by row")


def _row(path: Path, cells: tuple[str, ...], separator: str) -> str:
    for cell in cells:
        if re.search("[\t\n\r]", cell) or separator == " " and (not cell or " " in cell):
            raise DataError(f"{path}: {cell!r} cannot be written, a blank in it would look like the format's own")
    return separator.join(cells) + "\n"
