"""Items made from a small corpus of English written here."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.data import builders
from paribus.data.builders import BLANK, CHANGES, build
from paribus.data.document import Document
from paribus.data.formats import Item, MinimalPairItem, PairItem, SentenceItem, SpanItem, TaggingItem
from paribus.errors import DataError, SpecError
from paribus.seeds import seed_for
from paribus.spec.task import Built, MinimalPairs, Pair, Sentence, SpanQa, Tagging, Task

KEY = seed_for(0, "test")
TOWNS = ("Lisbon", "Oslo", "Cairo", "Quito", "Hanoi", "Accra", "Turin", "Izmir")
GOODS = ("copper", "timber", "barley", "cotton", "pepper", "marble", "silver", "amber")


def document(place: int) -> Document:
    town, other = TOWNS[place % 8], TOWNS[(place + place // 8 + 1) % 8]
    first, second = GOODS[place % 8], GOODS[(place + place // 8 + 3) % 8]
    paragraph = (
        f"The merchants of {town} were known for the {first} that year {1700 + place} was to bring.",
        f"In return, the {first} from {other} has filled every harbour with ships and men of trade.",
        f"It is said that {second} {place} was sold for less by the king in {other} than in any market.",
        f"Yet this {second} and the winter are hard on a house with many children in it, year {1700 + place}.",
    )
    return Document(str(place), (paragraph, ("Thank you.", f"God bless you all, dear friends in {town}.")))


DOCUMENTS = [document(place) for place in range(40)]
KINDS = {
    "acceptability": Sentence,
    "minimal-pairs": MinimalPairs,
    "order": Pair,
    "cloze": SpanQa,
    "truecasing": Tagging,
}


def task(builder: str, **fields: object) -> Task:
    kind, labels, _ = builders.BUILDERS[builder]
    fields = {"metrics": kind.accepts[:1], **({"labels": labels} if labels else {}), **fields}
    data = {"kind": "built", "builder": builder, "train": 16 if kind.trains else None, "dev": 16}
    return kind(name="t", source="made here", data=Built(**data), **fields)


def contents(items: list[Item]) -> set[tuple[object, ...]]:
    return {(item.content, item.gold) for item in items}


@pytest.mark.parametrize("builder", KINDS)
def test_items_do_not_depend_on_the_other_documents_or_on_their_order(builder: str) -> None:
    few, many = DOCUMENTS[:12], [*reversed(DOCUMENTS)]
    made = contents(list(builders.BUILDERS[builder].make(few, KEY)))
    assert made and made <= contents(list(builders.BUILDERS[builder].make(many, KEY)))


@pytest.mark.parametrize("builder", KINDS)
def test_asking_for_more_keeps_the_items_there_were(builder: str) -> None:
    assert contents(build(task(builder), DOCUMENTS, 16, KEY)) < contents(build(task(builder), DOCUMENTS, 24, KEY))


@pytest.mark.parametrize("builder", KINDS)
def test_another_key_draws_other_items_and_ids_count_from_zero(builder: str) -> None:
    items = build(task(builder), DOCUMENTS, 16, KEY)
    assert [item.id for item in items] == [str(number) for number in range(16)]
    assert contents(items) != contents(build(task(builder), DOCUMENTS, 16, KEY + 1))


def test_items_do_not_depend_on_pythons_hash_seed() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_builders as t; "
        "print([t.build(t.task(b), t.DOCUMENTS, 16, t.KEY) for b in t.KINDS])"
    )
    outputs = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(Path(__file__).parent)]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        outputs.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1 and "SpanItem" in outputs.pop()


@pytest.mark.parametrize("builder", ["acceptability", "order"])
@pytest.mark.parametrize("count", [16, 17])
def test_labels_come_in_equal_parts(builder: str, count: int) -> None:
    counts = Counter(item.gold for item in build(task(builder), DOCUMENTS, count, KEY))
    assert set(counts) == set(builders.BUILDERS[builder].labels)
    assert max(counts.values()) - min(counts.values()) == count % 2


def test_an_unacceptable_sentence_is_a_real_one_with_the_change_it_names() -> None:
    originals = {sentence for d in DOCUMENTS for sentence in d.sentences}
    items = list(builders.BUILDERS["acceptability"].make(DOCUMENTS, KEY))
    names = set()
    for item in items:
        assert isinstance(item, SentenceItem)
        if item.label == "1":
            assert item.sentence in originals and item.note == ""
        else:
            names.add(item.note)
            assert item.sentence not in originals
            reachable = {
                " ".join(words[:i] + new + words[j:])
                for words in map(str.split, originals)
                for i, j, new in CHANGES[item.note](words)
            }
            assert item.sentence in reachable
    assert names == set(CHANGES)


@pytest.mark.parametrize("count", [18, 20])
def test_a_minimal_pair_is_a_real_sentence_and_the_same_with_the_change_it_names(count: int) -> None:
    originals = {sentence for d in DOCUMENTS for sentence in d.sentences}
    items = build(task("minimal-pairs"), DOCUMENTS, count, KEY)
    paradigms: Counter[str] = Counter()
    for item in items:
        assert isinstance(item, MinimalPairItem)
        paradigms[item.paradigm] += 1
        assert item.good in originals and item.bad not in originals
        words = item.good.split()
        changed = [" ".join(words[:i] + new + words[j:]) for i, j, new in CHANGES[item.paradigm](words)]
        assert item.bad in changed and len(words) in builders.PAIR_WORDS
        assert item.phenomenon == builders.PHENOMENA[item.paradigm]
    assert set(paradigms) == set(CHANGES) and max(paradigms.values()) - min(paradigms.values()) == (count % 6 > 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("swap", {"We of are the house, men", "We are the of house, men"}),
        ("drop", {"We of the house, men", "We are the house, men"}),
        ("double", {"We are are of the house, men", "We are of of the house, men", "We are of the the house, men"}),
        ("agreement", {"We is of the house, men"}),
        ("shuffle", {"We of the are house, men", "We the are of house, men", "We the of are house, men"}),
        ("stray-of", {"We of are of the house, men"}),
    ],
)
def test_a_change_makes_exactly_these_sentences(change: str, expected: set[str]) -> None:
    words = "We are of the house, men".split()
    made = {" ".join(words[:i] + new + words[j:]) for i, j, new in CHANGES[change](words)}
    assert made == (expected | {"We are the of house, men"} if change == "swap" else expected)


@given(st.lists(st.sampled_from("We the of is men men, this was a that 1790 of a".split()), min_size=1, max_size=12))
def test_every_change_differs_from_the_sentence_and_spares_its_first_word(words: list[str]) -> None:
    for change in CHANGES.values():
        for first, last, new in change(words):
            changed = words[:first] + new + words[last:]
            assert changed != words and changed[0] == words[0]


def test_only_a_function_word_other_than_the_is_dropped_and_none_after_punctuation() -> None:
    assert CHANGES["drop"]("Men like the sea and the land, and the sky".split()) == [(4, 5, [])]


def test_a_pair_is_two_neighbours_of_one_paragraph() -> None:
    neighbours = {pair for d in DOCUMENTS for p in d.paragraphs for pair in zip(p, p[1:], strict=False)}
    items = list(builders.BUILDERS["order"].make(DOCUMENTS, KEY))
    for item in items:
        assert isinstance(item, PairItem)
        pair = (item.sentence1, item.sentence2)
        assert (pair if item.label == "in-order" else pair[::-1]) in neighbours
    assert len(items) == 3 * len(DOCUMENTS)


def test_a_cloze_answer_fills_the_blank_and_occurs_once_in_its_context() -> None:
    paragraphs = {paragraph for d in DOCUMENTS for paragraph in d.paragraphs}
    for item in build(task("cloze"), DOCUMENTS, 24, KEY):
        assert isinstance(item, SpanItem)
        (answer,) = item.answers
        assert item.context[answer.start : answer.start + len(answer.text)] == answer.text
        assert [word[0] for word in builders._WORD.finditer(item.context)].count(answer.text) == 1
        sentence = item.question.replace(BLANK, answer.text)
        paragraph = next(p for p in paragraphs if sentence in p)
        assert item.context == " ".join(other for other in paragraph if other != sentence)
        assert item.question.count(BLANK) == 1 and answer.text not in item.question


def test_a_word_that_occurs_again_in_another_case_or_as_part_of_a_word_is_told_apart() -> None:
    paragraph = (
        "The senators spoke about a harbour for nine long days without pause.",
        "Harbour dues were lowered, and every harbour was open to ships.",
        "The harbourmaster and two senators objected to it all, we hear.",
    )
    items = [
        item
        for item in builders.BUILDERS["cloze"].make([Document("d", (paragraph,))], KEY)
        if isinstance(item, SpanItem) and item.question.startswith("The _____ spoke")
    ]
    assert [item.answers[0].text for item in items] == ["senators"]


def test_a_word_that_the_question_says_twice_is_no_answer() -> None:
    paragraph = (
        "A marble house of marble is what they will build.",
        "It is in the north that marble is found, it seems.",
    )
    assert list(builders.BUILDERS["cloze"].make([Document("d", (paragraph,))], KEY)) == []


def test_a_long_paragraph_is_cut_into_passages() -> None:
    long = Document("long", (tuple(sentence for d in DOCUMENTS for sentence in d.paragraphs[0]),))
    for item in builders.BUILDERS["cloze"].make([long], KEY):
        assert isinstance(item, SpanItem)
        assert len(item.context) <= builders.PASSAGE_SENTENCES * 100


def test_truecasing_leaves_out_the_first_word_and_lower_cases_the_rest() -> None:
    sentence = '"The Senate and I met in New York on May 3, it is said."'
    (item,) = builders.BUILDERS["truecasing"].make([Document("d", ((sentence,),))], KEY)
    assert isinstance(item, TaggingItem)
    assert item.words == tuple('senate and i met in new york on may 3 , it is said . "'.split())
    assert item.labels == tuple("CAP O CAP O O CAP CAP O CAP O O O O O O O".split())


@pytest.mark.parametrize(
    "sentence", ["No capital is in this one after it.", "ALL OF THESE WORDS ARE IN CAPITALS HERE, SIR."]
)
def test_truecasing_leaves_out_sentences_whose_capitals_say_nothing(sentence: str) -> None:
    assert list(builders.BUILDERS["truecasing"].make([Document("d", ((sentence,),))], KEY)) == []


@pytest.mark.parametrize("builder", KINDS)
def test_too_small_a_corpus_is_an_error_that_says_how_many_there_are(builder: str) -> None:
    with pytest.raises(DataError, match=rf"task t: 1000 items .* builder {builder} can make \d+ of") as error:
        build(task(builder), DOCUMENTS[:6], 1000, KEY)
    possible = int(str(error.value).split("can make ")[1].split()[0])
    assert len(build(task(builder), DOCUMENTS[:6], possible, KEY)) == possible > 0
    with pytest.raises(DataError):
        build(task(builder), DOCUMENTS[:6], possible + len(CHANGES), KEY)


def test_a_task_whose_labels_are_not_the_builders_is_refused() -> None:
    with pytest.raises(SpecError, match=r"kind 'tagging' with labels \['O', 'CAP'\], found .* \['CAP', 'O'\]"):
        build(task("truecasing", labels=("CAP", "O")), DOCUMENTS, 8, KEY)


def test_a_task_of_another_kind_than_the_builders_is_refused() -> None:
    wrong = Sentence(name="t", source="s", data=task("cloze").data, metrics=("accuracy",))
    with pytest.raises(SpecError, match="builder cloze makes items of kind 'span-qa'"):
        build(wrong, DOCUMENTS, 8, KEY)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.text("aA .,'’-\u00a0б中", max_size=60), max_size=4), max_size=4), st.sampled_from([*KINDS]))
def test_any_text_at_all_gives_items_or_none(paragraphs: list[list[str]], builder: str) -> None:
    for item in builders.BUILDERS[builder].make([Document("d", tuple(map(tuple, paragraphs)))], KEY):
        assert item.content
