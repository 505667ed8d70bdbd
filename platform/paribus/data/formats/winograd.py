"""The Winograd schemas' XML. Levesque et al. 2012; the collection is that of Davis, Morgenstern and Ortiz."""

from collections.abc import Iterator
from xml.etree import ElementTree

from paribus.data.formats.items import ChoiceItem, Defect, Row
from paribus.errors import DataError
from paribus.project import Source
from paribus.spec.task import Task, Winograd


def read_winograd(format: Winograd, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """Each schema: the text, the clause with the pronoun as the question, the two noun phrases as options."""
    try:
        schemas = ElementTree.parse(source.path).findall("schema")
    except (ElementTree.ParseError, OSError) as error:
        raise DataError(f"{source}: not XML ({error})") from None
    for number, schema in enumerate(schemas):
        text, quote = (_joined(schema.find(part)) for part in ("text", "quote"))
        options = tuple(_joined(answer) for answer in schema.findall("answers/answer"))
        letter = (schema.findtext("correctAnswer") or "").strip(" \n.")
        if len(options) == 2 and letter in ("A", "B") and text:
            yield ChoiceItem(str(number), text, quote, options, "AB".index(letter))
        else:
            yield Defect(f"schema {number}", f"{len(options)} answers, the right one {letter!r}; expected 2, A or B")


def _joined(element: ElementTree.Element | None) -> str:
    """All text of an element, with single blanks."""
    return " ".join(" ".join(element.itertext()).split()) if element is not None else ""
