"""RACE: a folder a level (middle, high), in it a JSON object a passage."""

import re
from collections.abc import Iterator
from typing import Any

from paribus.data.formats.files import from_json, members
from paribus.data.formats.items import ChoiceItem, Defect, Row
from paribus.project import Source
from paribus.spec.task import Race, Task

LETTERS = "ABCD"


def read_race(format: Race, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """Each question with its passage and four options; `part` is the level."""
    wanted = (member for member in members(source, ".txt") if member[0].partition("/")[0] in format.levels)
    for name, text in sorted(wanted, key=lambda member: _natural(member[0])):
        level = name.partition("/")[0]
        try:
            passage = from_json(text)
            rows = list(zip(passage["questions"], passage["options"], passage["answers"], strict=True))
            yield from (
                _item(passage["article"], f"{level}/{passage['id']}-{number}", level, name, *row)
                for number, row in enumerate(rows)
            )
        except (KeyError, TypeError, ValueError) as error:
            yield Defect(name, f"not a passage of RACE ({type(error).__name__}: {error})")


def _item(article: str, id_: str, level: str, place: str, question: str, options: list[str], answer: Any) -> Row:
    if len(options) != len(LETTERS) or answer not in tuple(LETTERS):
        return Defect(place, f"question {question!r}: {len(options)} options, answer {answer!r}; expected 4, A to D")
    return ChoiceItem(id_, article, question, tuple(options), LETTERS.index(answer), level)


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers by value: 9.txt before 10.txt."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", name)]
