"""Items to ids: what is cut and what never is, and that answers can be found again."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.data import vocabulary as vocabularies
from paribus.data.builders import build
from paribus.data.document import Document
from paribus.data.formats import Answer, PairItem, RegressionItem, SentenceItem, SpanItem, TaggingItem
from paribus.data.vocabulary import CLS, SEP, UNK, Encoded, Vocabulary
from paribus.evaluate.features import IGNORED, features
from paribus.spec.data import ByteBpe, SentencePieceUnigram, Unigram
from paribus.spec.task import Built, Pair, Regression, Sentence, SpanQa, Tagging, Task

DATA = Built(builder="order", train=8, dev=8)
COMMON: dict[str, Any] = {"name": "t", "source": "here", "data": DATA}
SENTENCE = Sentence(**COMMON, metrics=("accuracy",))
PAIR = Pair(**COMMON, metrics=("accuracy",), labels=("no", "yes"))
REGRESSION = Regression(**COMMON, metrics=("pearson",))
SPAN = SpanQa(**COMMON, metrics=("em",))
TAGGING = Tagging(**COMMON, metrics=("f1",), labels=("O", "X"))
LENGTH = 16


def numbers() -> Vocabulary:
    """A vocabulary whose words are numbers, each as many pieces as its last digit (none for 0)."""

    def encode(texts: Any) -> list[Encoded]:
        return [
            Encoded(
                [int(w) for w in text.split() for _ in range(int(w) % 10)],
                [(m, m) for m, w in enumerate(text.split()) for _ in range(int(w) % 10)],
            )
            for text in texts
        ]

    return Vocabulary([str(id) for id in range(1000)], encode)


def words(count: int, first: int = 101) -> str:
    """`count` words of one piece each."""
    return " ".join(str(first + 10 * place) for place in range(count))


@pytest.mark.parametrize("count", [0, 1, 14, 15, 40])
def test_a_sentence_is_cut_at_its_end(count: int) -> None:
    (found,) = features(SENTENCE, [SentenceItem("0", words(count), "1")], numbers(), LENGTH)
    kept = min(count, LENGTH - 2)
    assert found.ids == [CLS, *map(int, words(kept).split()), SEP]
    assert (found.target, found.second, found.item) == (1, 0, 0)


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_pair_loses_the_end_of_its_longer_side_and_no_separator(first: int, second: int) -> None:
    pair, scored = (
        PairItem("0", words(first), words(second, 501), "yes"),
        RegressionItem("0", words(first), words(second, 501), 2.5),
    )
    (found,), (number,) = features(PAIR, [pair], numbers(), LENGTH), features(REGRESSION, [scored], numbers(), LENGTH)
    a, b = found.ids[1 : found.second - 1], found.ids[found.second : -1]
    assert found.ids == [CLS, *a, SEP, *b, SEP] and len(found.ids) <= LENGTH
    assert (
        a == [int(w) for w in words(first).split()][: len(a)]
        and b == [int(w) for w in words(second, 501).split()][: len(b)]
    )
    room = LENGTH - 3
    assert len(a) + len(b) == min(first + second, room)
    if len(a) < first:
        assert len(a) >= len(b) - 1
    if len(b) < second:
        assert len(b) >= len(a) - 1
    assert (found.target, number.target, number.ids) == (1, 2.5, found.ids)


@given(st.lists(st.sampled_from((100, 101, 102, 105)), min_size=1, max_size=12), st.data())
def test_the_first_piece_of_each_word_is_labelled(made: list[int], data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.sampled_from(("O", "X")), min_size=len(made), max_size=len(made)))
    item = TaggingItem("0", tuple(map(str, made)), tuple(labels))
    (found,) = features(TAGGING, [item], numbers(), LENGTH)
    assert isinstance(found.target, list) and len(found.target) == len(found.ids) <= LENGTH
    labelled = [(id, label) for id, label in zip(found.ids, found.target, strict=True) if label != IGNORED]
    expected = [(word if word % 10 else UNK, "OX".index(label)) for word, label in zip(made, labels, strict=True)]
    assert labelled == expected[: len(labelled)]
    left = expected[len(labelled) :]
    pieces = [max(1, word % 10) for word in made]
    assert not left or sum(pieces[: len(labelled) + 1]) > LENGTH - 2
    assert found.ids[0] == CLS and found.ids[-1] == SEP


@given(st.integers(0, 20), st.integers(0, 60))
def test_windows_cover_the_passage_and_overlap_by_half(question: int, passage: int) -> None:
    item = SpanItem("0", words(question), words(passage, 501), (Answer("", 0),))
    found = features(SPAN, [item], numbers(), LENGTH)
    asked = [int(w) for w in words(question).split()][: (LENGTH - 3) // 2]
    room = LENGTH - 3 - len(asked)
    covered: list[int] = []
    for number, feature in enumerate(found):
        window = feature.ids[feature.second : -1]
        assert feature.ids == [CLS, *asked, SEP, *window, SEP] and len(feature.ids) <= LENGTH
        assert feature.spans is not None and len(feature.spans) == len(window)
        covered += window[len(covered) - number * (room // 2) :]
    assert covered == [int(w) for w in words(passage, 501).split()]


@pytest.fixture(scope="session")
def tokenizers(
    documents: list[Document], vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Vocabulary]:
    sentences = [sentence for document in documents for sentence in document.sentences]
    kinds = (ByteBpe(vocabulary_size=512), Unigram(vocabulary_size=512), SentencePieceUnigram(vocabulary_size=512))
    made = {kind.kind: vocabularies.make(kind, sentences, tmp_path_factory.mktemp(kind.kind)) for kind in kinds}
    return {"wordpiece": vocabulary, **made}.__getitem__


@pytest.fixture(scope="session")
def cloze(documents: list[Document]) -> list[SpanItem]:
    task: Task = SpanQa(name="c", source="s", data=Built(builder="cloze", train=300, dev=8), metrics=("em",))
    items = build(task, documents, 300, 0)
    return [item for item in items if isinstance(item, SpanItem)]


@pytest.mark.parametrize("name", ["wordpiece", "byte-bpe", "unigram", "sentencepiece-unigram"])
@pytest.mark.parametrize("length", [32, 64, 128])
def test_a_gold_answer_lies_in_a_window_and_is_found_again_letter_by_letter(
    tokenizers: Callable[[str], Vocabulary], cloze: list[SpanItem], name: str, length: int
) -> None:
    exact = set()
    for feature in features(SPAN, cloze, tokenizers(name), length):
        if isinstance(feature.target, tuple):
            assert feature.spans is not None
            first, last = (feature.spans[end - feature.second] for end in feature.target)
            item = cloze[feature.item]
            if item.context[first[0] : last[1]] == item.answers[0].text:
                exact.add(feature.item)
    assert len(exact) >= 0.99 * len(cloze)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["wordpiece", "byte-bpe", "unigram", "sentencepiece-unigram"])
@given(before=st.text("the é“中. ", max_size=30), after=st.text("of ü”🙂, ", max_size=30))
def test_an_answer_among_letters_of_several_bytes_is_found_where_it_stands(
    tokenizers: Callable[[str], Vocabulary], name: str, before: str, after: str
) -> None:
    context = f"{before} states {after}"
    item = SpanItem("0", "the", context, (Answer("states", len(before) + 1),))
    (found, *_) = features(SPAN, [item], tokenizers(name), 256)
    assert isinstance(found.target, tuple) and found.spans is not None
    first, last = (found.spans[end - found.second] for end in found.target)
    assert context[first[0] : last[1]] == "states"
