"""Columns, a word a line: CoNLL-2003, WNUT-17, MasakhaNER, universal parts of speech."""

import re
from collections.abc import Iterator

from paribus.data.formats.files import lines
from paribus.data.formats.items import Defect, Row, TaggingItem
from paribus.data.formats.rows import Refused, label_of
from paribus.project import Source
from paribus.spec.task import Conll, Task


def read_conll(format: Conll, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """The word first, a blank line after a sentence; -DOCSTART- lines are dropped.

    Tjong Kim Sang and De Meulder 2003, W03-0419. Labels stay in the file's scheme (IOB1 or BIO). A sentence with a bad
    line is left out as a whole.
    """
    sentences = 0
    width = 0
    words: list[str] = []
    labels: list[str] = []
    bad: Defect | None = None
    for number, line in (*lines(source), (0, "")):
        # Only tabs and spaces part columns; words of tab-separated files may hold spaces, and any word other blanks.
        bare = line.strip(" \t")
        cells = re.split("\t" if "\t" in bare else " +", bare)
        if bare and cells[0] != "-DOCSTART-":
            words.append(cells[0])
            if len(cells) < 2 or width not in (0, len(cells)):
                expected = width or "at least 2 (word, label)"
                bad = bad or Defect(f"line {number}", f"{len(cells)} columns, expected {expected}")
                continue
            width = len(cells)
            if not -len(cells) <= format.label < len(cells):
                bad = bad or Defect(f"line {number}", f"{len(cells)} columns, no column {format.label} with the label")
                continue
            try:
                labels.append(str(label_of(task, cells[format.label], test=False)))
            except Refused as error:
                bad = bad or Defect(f"line {number}", str(error))
        elif words:
            yield bad or TaggingItem(str(sentences), tuple(words), tuple(labels))
            sentences += 1
            words, labels, bad = [], [], None
