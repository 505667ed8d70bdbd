"""SuperGLUE's tasks whose rows are not yet pairs or choices. Wang et al. 2019, arXiv:1905.00537."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from paribus.data.formats.items import ChoiceItem, Defect, PairItem, Row
from paribus.data.formats.rows import Refused, label_of, objects, place_of
from paribus.project import Source
from paribus.spec.task import Format, Task

Make = Callable[[Task, dict[str, Any], bool], Iterator[Row]]

QUESTIONS = {"cause": "What was the CAUSE of this?", "effect": "What happened as a RESULT?"}


def _reader(make: Make) -> Callable[[Format, Task, Source, bool], Iterator[Row]]:
    """A reader of JSON lines whose objects `make` turns into items; an object that is no such thing is a defect."""

    def read(format: Format, task: Task, source: Source, test: bool) -> Iterator[Row]:
        for record in objects(source):
            if isinstance(record, Defect):
                yield record
                continue
            place, data = record
            try:
                made = list(make(task, data, test))
                yield from (replace(row, place=place) if isinstance(row, Defect) else row for row in made)
            except Refused as why:
                yield Defect(place, str(why))
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                yield Defect(place, f"not in the task's format ({type(error).__name__}: {error})")

    return read


def _copa(task: Task, data: dict[str, Any], test: bool) -> Iterator[Row]:
    options = (data["choice1"], data["choice2"])
    label = place_of(data.get("label"), len(options), test)
    yield ChoiceItem(str(data["idx"]), data["premise"], QUESTIONS[data["question"]], options, label)


def _multirc(task: Task, data: dict[str, Any], test: bool) -> Iterator[Row]:
    passage = data["passage"]
    for question in passage["questions"]:
        group = f"{data['idx']}-{question['idx']}"
        for answer in question["answers"]:
            label = label_of(task, answer.get("label"), test)
            text = f"{question['question']} {answer['text']}"
            yield PairItem(f"{group}-{answer['idx']}", passage["text"], text, label, group, answer["text"])


def _record(task: Task, data: dict[str, Any], test: bool) -> Iterator[Row]:
    raw = data["passage"]["text"]
    # An entity's end is its last character.
    entities = list(dict.fromkeys(raw[place["start"] : place["end"] + 1] for place in data["passage"]["entities"]))
    # As T5's preprocessing has it: highlights are sentences after the text. Raffel et al. 2020, arXiv:1910.10683.
    passage = re.sub(r"\n@highlight\n", ". ", re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", raw))
    for query in data["qas"]:
        group = f"{data['idx']}-{query['idx']}"
        answers = {answer["text"] for answer in query["answers"]} if query.get("answers") else None
        if answers is None and not test:
            raise Refused(f"query {query['idx']} has no answers")
        for number, entity in enumerate(entities):
            label = None if answers is None else label_of(task, entity in answers, test)
            text = query["query"].replace("@placeholder", entity)
            yield PairItem(f"{group}-{number}", passage, text, label, group, entity)


def _wic(task: Task, data: dict[str, Any], test: bool) -> Iterator[Row]:
    label = label_of(task, data.get("label"), test)
    yield PairItem(str(data["idx"]), f"{data['word']}: {data['sentence1']}", data["sentence2"], label)


def _wsc(task: Task, data: dict[str, Any], test: bool) -> Iterator[Row]:
    target = data["target"]
    words, pronoun, given = data["text"].split(), target["span2_text"], target["span2_index"]
    size = len(pronoun.split())
    places = [place for place in range(len(words)) if _bare(" ".join(words[place : place + size])) == _bare(pronoun)]
    if not places:
        raise Refused(f"the pronoun {pronoun!r} is not in {data['text']!r}")
    place = min(places, key=lambda place: abs(place - given))
    words[place] = f"*{words[place]}"
    words[place + size - 1] += "*"
    label = label_of(task, data.get("label"), test)
    yield PairItem(str(data["idx"]), " ".join(words), target["span1_text"], label)
    if place != given:
        yield Defect("", f"the pronoun {pronoun!r} is not word {given}; word {place} was taken", left_out=False)


def _bare(text: str) -> str:
    """A text without case and the punctuation around it."""
    return re.sub(r"^\W+|(\W|'s)+$", "", text.lower())


read_copa, read_multirc, read_record = _reader(_copa), _reader(_multirc), _reader(_record)
read_wic, read_wsc = _reader(_wic), _reader(_wsc)
