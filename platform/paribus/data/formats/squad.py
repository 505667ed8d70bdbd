"""SQuAD's JSON, 1.1 and 2.0, and XQuAD's, which is the same."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from paribus.data.formats.files import from_json, text_of
from paribus.data.formats.items import Answer, Defect, Item, Row, SpanItem
from paribus.errors import DataError
from paribus.project import Source
from paribus.spec.task import SpanQa, Squad, Task


def read_squad(format: Squad, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """Each question with its paragraph. An answer that is off by white space is moved to where it is."""
    assert isinstance(task, SpanQa)
    try:
        articles = from_json(text_of(source))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    except json.JSONDecodeError as error:
        raise DataError(f"{source}, line {error.lineno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError) as error:
        raise DataError(f"{source}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    for number, paragraph in enumerate(paragraphs):
        try:
            context, questions = paragraph["context"], paragraph["qas"]
        except (KeyError, TypeError) as error:
            yield Defect(f"paragraph {number}", f"not in SQuAD's format ({type(error).__name__}: {error})")
            continue
        for question in questions:
            try:
                yield from _question(task, context, question, test)
            except (KeyError, TypeError, AttributeError) as error:
                yield Defect(f"paragraph {number}", f"not in SQuAD's format ({type(error).__name__}: {error})")


def _question(task: SpanQa, context: str, question: dict[str, Any], test: bool) -> Iterator[Row]:
    place = f"question {question['id']}"
    if not isinstance(context, str) or not isinstance(question["question"], str):
        raise TypeError("context and question must be texts")
    given = [Answer(answer["text"], answer["answer_start"]) for answer in question.get("answers", [])]
    if not given and not task.unanswerable and not test:
        yield Defect(place, "no answer; SQuAD 1.1 answers every question, for 2.0 the task has unanswerable: true")
        return
    found = [_located(context, answer) for answer in given]
    answers = tuple(answer for answer in found if answer is not None)
    if len(answers) < len(given):
        wrong = given[found.index(None)]
        there = context[max(wrong.start, 0) :][: len(wrong.text)]
        yield Defect(place, f"answer {wrong.text!r} is not at {wrong.start}; there is {there!r}")
        return
    yield SpanItem(question["id"], question["question"], context, answers)
    if moved := sum(answer != before for answer, before in zip(answers, given, strict=True)):
        yield Defect(place, f"{moved} answers were off by white space and have been moved", left_out=False)


def _located(context: str, answer: Answer) -> Answer | None:
    """`answer` where it says it is, or moved over white space to where it is; None if it is not there."""
    if not answer.text.strip() or answer.start < 0:
        return None
    if context.startswith(answer.text, answer.start):
        return answer
    words = r"\s+".join(map(re.escape, answer.text.split()))
    found = re.compile(rf"\s*({words})").match(context, answer.start)
    return Answer(found[1], found.start(1)) if found else None


def squad(items: Sequence[Item]) -> str:
    """Span items as one file."""
    paragraphs = []
    spans = [item for item in items if isinstance(item, SpanItem)]
    for context, group in groupby(spans, key=lambda item: item.context):
        qas = [
            {
                "id": item.id,
                "question": item.question,
                "answers": [{"answer_start": answer.start, "text": answer.text} for answer in item.answers],
                "is_impossible": not item.answers,
            }
            for item in group
        ]
        paragraphs.append({"context": context, "qas": qas})
    article = {"title": "", "paragraphs": paragraphs}
    return json.dumps({"version": "v2.0", "data": [article]}, ensure_ascii=False) + "\n"
