"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.sentences import split


@pytest.mark.parametrize(
    "sentences",
    [
        ["The House met.", "It was late."],
        ["Was it late?", "It was!", "So they went home."],
        ['He said: "It is done."', "They left."],
        ["(It was so.)", '"Indeed," he said.'],
        ["Mr. Speaker, the U.S. Treasury paid Dr. J. Q. Adams $3.50 on Jan. 3 at 5 p.m. sharp."],
        ["In No. 4 of vol. 2 it is said otherwise."],
        ["So do I.", "We agree."],
        ["It cost 3.5 million.", "1812 was a hard year."],
        ["no capital. so no end"],
        ["It was...", "Well."],
    ],
)
def test_these_sentences_are_found(sentences: list[str]) -> None:
    assert split(" ".join(sentences)) == sentences


def test_white_space_is_folded_and_nothing_gives_nothing() -> None:
    assert split("  It was\n late.\t\tThey\u00a0left. ") == ["It was late.", "They left."]
    assert split(" \n ") == []


@given(st.text("aAI.!? \n\t\"')(1é—", max_size=60))
def test_sentences_joined_by_blanks_give_the_paragraph_back(paragraph: str) -> None:
    found = split(paragraph)
    assert " ".join(found) == " ".join(paragraph.split())
    assert all(sentence and sentence == sentence.strip() for sentence in found)
