"""Items to ids: what is cut and what never is, and that answers can be found again."""

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.data import vocabulary as vocabularies
from paribus.data.builders import build
from paribus.data.document import Document
from paribus.data.formats import Answer, ChoiceItem, PairItem, RegressionItem, SentenceItem, SpanItem, TaggingItem, read
from paribus.data.vocabulary import CLS, SEP, UNK, Pieces, Vocabulary, end_to_end
from paribus.evaluate.features import IGNORED, features
from paribus.project import Source
from paribus.spec.data import ByteBpe, SentencePieceUnigram, Unigram, WordPiece
from paribus.spec.finetuning import Windows
from paribus.spec.task import Built, Folder, MultipleChoice, Pair, Regression, Sentence, SpanQa, Tagging, Task

DATA = Built(builder="order", train=8, dev=8)
COMMON: dict[str, Any] = {"name": "t", "source": "here", "data": DATA}
SENTENCE = Sentence(**COMMON, metrics=("accuracy",))
PAIR = Pair(**COMMON, metrics=("accuracy",), labels=("no", "yes"))
REGRESSION = Regression(**COMMON, metrics=("pearson",))
SPAN = SpanQa(**COMMON, metrics=("em",))
TAGGING = Tagging(**COMMON, metrics=("f1",), labels=("O", "X"))
CHOICE = MultipleChoice(**COMMON, metrics=("accuracy",))
LENGTH = 16


def numbers() -> Vocabulary:
    """A vocabulary whose words are numbers, each as many pieces as its last digit (none for 0)."""

    def encode(texts: Any) -> Pieces:
        ids = [[int(w) for w in text.split() for _ in range(int(w) % 10)] for text in texts]
        spans = [[(m, m) for m, w in enumerate(text.split()) for _ in range(int(w) % 10)] for text in texts]
        return end_to_end(map(len, ids), ids, spans)

    return Vocabulary([str(id) for id in range(1000)], encode)


def spelled() -> Vocabulary:
    """A vocabulary whose words are numbers, each one piece that knows its characters."""

    def encode(texts: Any) -> Pieces:
        found = [list(re.finditer(r"\d+", text)) for text in texts]
        ids = [[int(word[0]) for word in of] for of in found]
        return end_to_end(map(len, ids), ids, [[word.span() for word in of] for of in found])

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
    while first + second > room:  # run_classifier.py, _truncate_seq_pair
        first, second = (first - 1, second) if first > second else (first, second - 1)
    assert (len(a), len(b)) == (first, second)
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


@given(st.integers(0, 20), st.integers(0, 60), st.integers(1, 9))
def test_windows_are_those_of_berts_loop(question: int, passage: int, stride: int) -> None:
    item = SpanItem("0", words(question), words(passage, 501), (Answer("", 0),))
    asked = [int(w) for w in words(question).split()][: min(5, (LENGTH - 3) // 2)]
    room = LENGTH - 3 - len(asked)
    found = features(SPAN, [item], numbers(), LENGTH, Windows(stride=stride, question=5))
    # run_squad.py, convert_examples_to_features; our stride is at most half of the room.
    expected, start, tokens = [], 0, [int(w) for w in words(passage, 501).split()]
    while True:
        expected.append(tokens[start : start + room])
        if start + len(expected[-1]) == len(tokens):
            break
        start += min(len(expected[-1]), stride, room // 2)
    assert [feature.ids for feature in found] == [[CLS, *asked, SEP, *window, SEP] for window in expected]


@pytest.mark.parametrize(("stride", "length"), [(128, 384), (5, 24), (6, 31)])
def test_windows_are_those_that_transformers_makes(stride: int, length: int) -> None:
    """Its `stride` is the overlap: the room less our stride. `tokenizers` cuts, as in transformers' run_qa.py."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    cut = Tokenizer(models.WordLevel({str(n): n for n in range(1000)}, unk_token="4"))
    cut.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cut.post_processor = processors.TemplateProcessing(
        single="1 $A 2", pair="1 $A 2 $B:1 2:1", special_tokens=[("1", CLS), ("2", SEP)]
    )
    question, passage = words(4), " ".join(str(5 + 13 * n % 990) for n in range(700))
    room = length - 3 - 4
    cut.enable_truncation(length, stride=room - stride, strategy="only_second")
    first = cut.encode(question, passage)
    theirs = [first.ids, *(window.ids for window in first.overflowing)]
    ours = features(SPAN, [SpanItem("0", question, passage, ())], spelled(), length, Windows(stride=stride))
    assert [feature.ids for feature in ours] == theirs


@given(st.integers(1, 60), st.integers(1, 9))
def test_each_token_of_a_passage_has_most_context_in_one_window(passage: int, stride: int) -> None:
    item = SpanItem("0", words(2), words(passage, 501), ())
    found = features(SPAN, [item], numbers(), LENGTH, Windows(stride=stride))
    room, step = LENGTH - 5, min(stride, (LENGTH - 5) // 2)
    best: dict[int, tuple[float, int]] = {}
    for window, feature in enumerate(found):
        size = len(feature.spans or ())
        assert size <= room and len(feature.widest or ()) == size
        for place in range(size):
            context = min(place, size - 1 - place) + 0.01 * size  # run_squad.py, _check_is_max_context
            if context > best.get(window * step + place, (-1.0, 0))[0]:
                best[window * step + place] = (context, window)
    told = [
        (window * step + place, window)
        for window, feature in enumerate(found)
        for place, most in enumerate(feature.widest or ())
        if most
    ]
    assert sorted(told) == [(place, window) for place, (_, window) in sorted(best.items())]


def test_a_window_without_the_whole_answer_and_a_question_without_one_point_at_cls() -> None:
    context = words(30, 501)
    start = len(words(12, 501)) + 1
    answer = Answer(context[start : start + 7], start)  # two words, the 12th and 13th
    found = features(SPAN, [SpanItem("0", words(2), context, (answer,))], spelled(), LENGTH, Windows(stride=5))
    inside = [n for n, feature in enumerate(found) if feature.target != (0, 0)]
    assert inside == [1, 2] and found[1].target == (4 + 12 - 5, 4 + 13 - 5)
    (*none,) = features(SPAN, [SpanItem("0", words(2), context, ())], numbers(), LENGTH)
    assert {feature.target for feature in none} == {(0, 0)}


@given(st.integers(0, 40), st.integers(0, 6), st.integers(1, 40))
def test_of_a_choice_the_context_is_cut_and_every_option_is_a_row(context: int, question: int, option: int) -> None:
    item = ChoiceItem("0", words(context), words(question, 301), (words(option, 501), words(1, 901)), 1)
    found = features(CHOICE, [item], numbers(), LENGTH)
    assert [(feature.option, feature.target, feature.item) for feature in found] == [(0, 1, 0), (1, 1, 0)]
    for feature, text in zip(found, item.options, strict=True):
        second = [int(w) for w in f"{item.question} {text}".split()]
        first = [int(w) for w in item.context.split()]
        kept = second[: LENGTH - 2] if not context else second[: (LENGTH - 3) // 2]
        left = [*first[: LENGTH - 3 - len(kept)], SEP] if context else []
        assert feature.ids == [CLS, *left, *kept, SEP] and len(feature.ids) <= LENGTH
        assert feature.second == (len(left) + 1 if context else 0)


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
        if isinstance(feature.target, tuple) and feature.target != (0, 0):
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


def test_gold_answers_of_squad_lie_in_a_window_and_are_found_again(shared: Path) -> None:
    task = SpanQa(name="s", source="s", data=Folder(path="squad", train="t", dev="d"), metrics=("em",))
    items = read(task, Source(next((shared / "squad").glob("dev-v1.1.json*")))).items[::20]
    texts = sorted({item.context for item in items if isinstance(item, SpanItem)})
    with TemporaryDirectory() as folder:
        vocabulary = vocabularies.make(WordPiece(vocabulary_size=4096), texts, Path(folder))
    exact = set()
    for feature in features(SPAN, items, vocabulary, 384):
        if feature.target != (0, 0) and isinstance(feature.target, tuple) and feature.spans is not None:
            first, last = (feature.spans[end - feature.second] for end in feature.target)
            item = items[feature.item]
            assert isinstance(item, SpanItem)
            if item.context[first[0] : last[1]] == item.answers[0].text:
                exact.add(feature.item)
    assert len(exact) >= 0.99 * len(items) > 400
