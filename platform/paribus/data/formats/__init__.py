"""Files of labelled items."""

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from paribus.data.formats.files import lines, save, text_of
from paribus.data.formats.items import Answer as Answer
from paribus.data.formats.items import ChoiceItem as ChoiceItem
from paribus.data.formats.items import Item as Item
from paribus.data.formats.items import MinimalPairItem as MinimalPairItem
from paribus.data.formats.items import PairItem as PairItem
from paribus.data.formats.items import RegressionItem as RegressionItem
from paribus.data.formats.items import SentenceItem as SentenceItem
from paribus.data.formats.items import SpanItem as SpanItem
from paribus.data.formats.items import TaggingItem as TaggingItem
from paribus.data.formats.items import read_items as read_items
from paribus.data.formats.items import split_select as split_select
from paribus.data.formats.items import write_items as write_items
from paribus.errors import DataError
from paribus.spec.task import Pair, Regression, Sentence, SpanQa, Tagging, Task

log = logging.getLogger(__name__)

_HEADERS = {"pair": "index\tsentence1\tsentence2\tlabel\n", "regression": "index\tsentence1\tsentence2\tscore\n"}


def read(task: Task, path: Path) -> list[Item]:
    """The items of a file in the format of the task's kind; `.gz` is read as it is.

    Quotes are plain characters, and no string stands for a missing value. Raises DataError, with file and line, for a
    file that is not UTF-8, empty, cut short, or does not have the format's columns or the task's labels.
    """
    items: Iterable[Item]
    match task:
        case Sentence():
            items = _read_sentences(path, task.labels)
        case Pair():
            items = _read_pairs(path, task.labels)
        case Regression():
            items = _read_regression(path)
        case SpanQa():
            items = _read_squad(path)
        case Tagging():
            items = _read_conll(path, task.labels)
        case _:
            raise DataError(f"task {task.name}: kind {task.kind!r} has no file format")
    found: list[Item] = list(items)
    if not found:
        raise DataError(f"{path}: holds no items")
    return found


def write(path: Path, items: Sequence[Item]) -> None:
    """Write items of one kind in its standard format; `read` gives the same items back.

    In CoLA's TSV and CoNLL columns an item's id is its place in the file. Raises DataError for text that the format
    cannot hold (a tab or a line break in a TSV, any blank inside a CoNLL word).
    """
    if isinstance(items[0], SpanItem):
        save(path, _squad(items))
    else:
        save(path, _HEADERS.get(items[0].kind, "") + "".join(_rows(path, item) for item in items))


def _checked(path: Path, number: int, label: str, labels: tuple[str, ...]) -> str:
    if label not in labels:
        raise DataError(f"{path}, line {number}: label {label!r} is not one of the task's: {', '.join(labels)}")
    return label


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


# --- CoLA, pairs, regression ----------------------------------------------------------------------------------------


def _read_sentences(path: Path, labels: tuple[str, ...]) -> Iterator[SentenceItem]:
    """CoLA: source, label, the author's mark, sentence; no header. Warstadt et al. 2019, arXiv:1805.12471."""
    for number, line in lines(path):
        cells = line.split("\t")
        if len(cells) != 4:
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns, expected 4 (source, label, mark, sentence), "
                "separated by tabs"
            )
        source, label, note, sentence = cells
        yield SentenceItem(str(number - 1), sentence, _checked(path, number, label, labels), source, note)


def _read_pairs(path: Path, labels: tuple[str, ...]) -> Iterator[PairItem]:
    for number, (index, sentence1, sentence2, label) in _table(path, "label"):
        yield PairItem(index, sentence1, sentence2, _checked(path, number, label, labels))


def _read_regression(path: Path) -> Iterator[RegressionItem]:
    for number, (index, sentence1, sentence2, score) in _table(path, "score"):
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{path}, line {number}: score {score!r} is not a finite number")
        yield RegressionItem(index, sentence1, sentence2, value)


def _table(path: Path, target: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and (index, sentence1, sentence2, `target`) of each row, found by the header; others are skipped."""
    rows = lines(path)
    header = next(rows)[1].split("\t")
    wanted = ("index", "sentence1", "sentence2", target)
    if missing := [name for name in wanted if name not in header]:
        raise DataError(f"{path}, line 1: no column {missing[0]!r}; needed {', '.join(wanted)}; found {header}")
    for number, line in rows:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(f"{path}, line {number}: {len(cells)} columns, expected the header's {len(header)}")
        yield number, [cells[header.index(name)] for name in wanted]


# --- SQuAD ----------------------------------------------------------------------------------------------------------


def _read_squad(path: Path) -> Iterator[SpanItem]:
    """SQuAD 1.1: every question has an answer in its paragraph. Rajpurkar et al. 2016, arXiv:1606.05250."""
    repaired = 0
    try:
        paragraphs = [paragraph for article in json.loads(text_of(path))["data"] for paragraph in article["paragraphs"]]
        for paragraph in paragraphs:
            context = paragraph["context"]
            for qa in paragraph["qas"]:
                if not qa["answers"]:
                    raise DataError(f"{path}: question {qa['id']} has no answer; SQuAD 1.1 answers every question")
                answers = []
                for given in (Answer(answer["text"], answer["answer_start"]) for answer in qa["answers"]):
                    found = _located(context, given)
                    if found is None:
                        there = context[max(given.start, 0) :][: len(given.text)]
                        raise DataError(
                            f"{path}: question {qa['id']}: answer {given.text!r} is not at {given.start}; "
                            f"there is {there!r}"
                        )
                    repaired += found != given
                    answers.append(found)
                yield SpanItem(qa["id"], qa["question"], context, tuple(answers))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not in SQuAD 1.1's format ({type(error).__name__}: {error})") from None
    if repaired:
        log.warning("%s: %d answers were off by white space and have been moved", path, repaired)


def _located(context: str, answer: Answer) -> Answer | None:
    """`answer` where it says it is, or moved over white space to where it is; None if it is not there."""
    if not answer.text.strip() or answer.start < 0:
        return None
    if context.startswith(answer.text, answer.start):
        return answer
    words = r"\s+".join(map(re.escape, answer.text.split()))
    found = re.compile(rf"\s*({words})").match(context, answer.start)
    return Answer(found[1], found.start(1)) if found else None


def _squad(items: Sequence[Item]) -> str:
    paragraphs = []
    spans = [item for item in items if isinstance(item, SpanItem)]
    for context, group in groupby(spans, key=lambda item: item.context):
        qas = [
            {
                "id": item.id,
                "question": item.question,
                "answers": [{"answer_start": answer.start, "text": answer.text} for answer in item.answers],
            }
            for item in group
        ]
        paragraphs.append({"context": context, "qas": qas})
    article = {"title": "", "paragraphs": paragraphs}
    return json.dumps({"version": "1.1", "data": [article]}, ensure_ascii=False) + "\n"


# --- CoNLL ----------------------------------------------------------------------------------------------------------


def _read_conll(path: Path, labels: tuple[str, ...]) -> Iterator[TaggingItem]:
    """A word a line, the label in the last column, a blank line after a sentence; -DOCSTART- lines are dropped.

    Tjong Kim Sang and De Meulder 2003, W03-0419. Labels stay in the file's scheme (IOB1 or BIO).
    """
    sentences = 0
    width = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in (*lines(path), (0, "")):
        # Only tabs and spaces part columns; words of tab-separated files may hold spaces, and any word other blanks.
        bare = line.strip(" \t")
        cells = re.split("\t" if "\t" in bare else " +", bare)
        if bare and cells[0] != "-DOCSTART-":
            if len(cells) < 2 or width not in (0, len(cells)):
                expected = width or "at least 2 (word, label)"
                raise DataError(f"{path}, line {number}: {len(cells)} columns, expected {expected}")
            width = len(cells)
            words.append(cells[0])
            tags.append(_checked(path, number, cells[-1], labels))
        elif words:
            yield TaggingItem(str(sentences), tuple(words), tuple(tags))
            sentences += 1
            words, tags = [], []
