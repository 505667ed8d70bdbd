"""Task files: what was written reads back, real files read with the official counts, bad ones are named with line."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.data.formats import (
    Answer,
    ChoiceItem,
    Item,
    MinimalPairItem,
    PairItem,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
    read_items,
    split_select,
    write,
    write_items,
)
from paribus.data.formats import read as read_source
from paribus.errors import DataError
from paribus.project import Source
from paribus.spec.task import Folder, Pair, Regression, Sentence, SpanQa, Tagging, Task

FOLDER = Folder(path="p", train="train", dev="dev")
SENTENCE = Sentence(name="s", source="", data=FOLDER, metrics=("mcc",))
PAIR = Pair(name="p", source="", data=FOLDER, metrics=("accuracy",), labels=("no", "yes"))
REGRESSION = Regression(name="r", source="", data=FOLDER, metrics=("pearson",))
SPAN = SpanQa(name="q", source="", data=FOLDER, metrics=("em",))
TAGGING = Tagging(name="t", source="", data=FOLDER, metrics=("entity-f1",), labels=("O", "I-PER", "B-PER"))

# Everything but what the formats use as their own, and surrogates, which are no text.
text = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=("Cs",)), max_size=20)
word = st.text(st.characters(exclude_characters="\t\n\r \ufeff", exclude_categories=("Cs",)), min_size=1, max_size=8)


def read(task: Task, path: Path, test: bool = False) -> list[Item]:
    return read_source(task, Source(path), test).items


def defects(task: Task, path: Path, test: bool = False) -> list[str]:
    return [str(defect) for defect in read_source(task, Source(path), test).defects]


@st.composite
def spans(draw: st.DrawFn) -> tuple[str, str, tuple[Answer, ...]]:
    before, answer, after = draw(text), draw(word.filter(str.strip)), draw(text)
    return draw(text), before + answer + after, (Answer(answer, len(before)),)


def numbered(make: object, rows: list[tuple]) -> list[Item]:
    return [make(str(number), *row) for number, row in enumerate(rows)]


CASES = {
    "sentence": (SENTENCE, SentenceItem, st.tuples(text, st.sampled_from("01"), word, text)),
    "pair": (PAIR, PairItem, st.tuples(text, text, st.sampled_from(["no", "yes"]))),
    "regression": (REGRESSION, RegressionItem, st.tuples(text, text, st.floats(allow_nan=False, allow_infinity=False))),
    "span-qa": (SPAN, SpanItem, spans()),
    "tagging": (
        TAGGING,
        TaggingItem,
        st.lists(st.tuples(word, st.sampled_from(TAGGING.labels)), min_size=1).map(
            lambda rows: tuple(zip(*rows, strict=True))
        ),
    ),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_what_was_written_reads_back_the_same(kind: str, ending: str, tmp_path: Path) -> None:
    task, make, rows = CASES[kind]
    path, lines = tmp_path / f"file{ending}", tmp_path / f"items.jsonl{ending}"

    @settings(max_examples=40, deadline=None)
    @given(st.lists(rows, min_size=1, max_size=4))
    def check(found: list[tuple]) -> None:
        items = numbered(make, found)
        write(path, items)
        assert read(task, path) == items
        write_items(lines, items)
        assert read_items(lines) == items

    check()


def test_stages_pass_on_items_of_every_kind(tmp_path: Path) -> None:
    items = [
        SentenceItem("7", "a\tb\nc", "1", "gj04", "*"),
        PairItem("7", "", "\u2028", "yes"),
        RegressionItem("7", "a", "b", 0.1 + 0.2),
        SpanItem("7", "q", "c c", (Answer("c", 0), Answer("c", 2))),
        SpanItem("8", "q", "c", ()),
        TaggingItem("7", ("New York",), ("O",)),
        PairItem("1-2-3", "a", "b", None, "1-2", "option"),
        ChoiceItem("7", "a", "", ("b", "c"), None, "high"),
        MinimalPairItem("7", "a", "b", "p", "q"),
    ]
    write_items(tmp_path / "items.jsonl", items)
    assert read_items(tmp_path / "items.jsonl") == items


def test_the_files_are_those_of_the_original_distributions(tmp_path: Path) -> None:
    def written(item: Item) -> str:
        write(tmp_path / "file", [item])
        return (tmp_path / "file").read_text(encoding="utf-8")

    assert written(SentenceItem("0", "He go.", "0", "gj04", "*")) == "gj04\t0\t*\tHe go.\n"
    assert written(PairItem("0", "a", "b", "yes")) == "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tyes\n"
    assert written(RegressionItem("0", "a", "b", 2.5)) == "index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n"
    assert written(TaggingItem("0", ("Ann", "ran"), ("I-PER", "O"))) == "Ann I-PER\nran O\n\n"
    paragraph = {
        "context": "one two",
        "qas": [{"id": "0", "question": "q", "answers": [{"answer_start": 4, "text": "two"}], "is_impossible": False}],
    }
    squad = json.loads(written(SpanItem("0", "q", "one two", (Answer("two", 4),))))
    assert squad == {"version": "v2.0", "data": [{"title": "", "paragraphs": [paragraph]}]}


@pytest.mark.parametrize(
    "item",
    [
        SentenceItem("0", "a\tb", "1"),
        PairItem("0", "a", "b\n", "yes"),
        TaggingItem("0", ("New York",), ("O",)),
        TaggingItem("0", ("",), ("O",)),
    ],
)
def test_text_that_a_format_cannot_hold_is_refused(item: Item, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        write(tmp_path / "file", [item])
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["", "no last newline"])
def test_marks_and_line_endings_do_not_matter(mark: bytes, ending: bytes, last: bool, tmp_path: Path) -> None:
    def save(*lines: bytes) -> Path:
        (tmp_path / "file").write_bytes(mark + ending.join(lines) + (ending if last else b""))
        return tmp_path / "file"

    cola = save(b"gj04\t1\t\tHe ran.", b"gj04\t0\t*\tHe runned.")
    assert [(i.sentence, i.gold) for i in read(SENTENCE, cola)] == [("He ran.", "1"), ("He runned.", "0")]
    pairs = save(b"index\tsentence1\tsentence2\tlabel", b"4\ta\tb\tyes", b"5\tc\td\tno")
    assert read(PAIR, pairs) == [PairItem("4", "a", "b", "yes"), PairItem("5", "c", "d", "no")]
    conll = save(b"-DOCSTART- -X- O", b"", b"Ann N I-PER", b"ran V O", b"", b"", b"Bob N I-PER")
    assert read(TAGGING, conll) == [
        TaggingItem("0", ("Ann", "ran"), ("I-PER", "O")),
        TaggingItem("1", ("Bob",), ("I-PER",)),
    ]


def test_quotes_and_names_of_nothing_are_plain_text(tmp_path: Path) -> None:
    rows = [('"a', "b"), ("null", "NA"), ("n/a", ""), ("", 'say "x"'), ("\u2028", "\x85"), (" a ", "b ")]
    lines = [f"{number}\t{a}\t{b}\tyes" for number, (a, b) in enumerate(rows)]
    (tmp_path / "file").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]), encoding="utf-8")
    found = read(PAIR, tmp_path / "file")
    assert [(item.sentence1, item.sentence2) for item in found if isinstance(item, PairItem)] == rows


def test_words_of_tab_separated_columns_may_hold_blanks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("New York\tX\tI-PER\n\n", encoding="utf-8")
    assert read(TAGGING, tmp_path / "file") == [TaggingItem("0", ("New York",), ("I-PER",))]


HEADER = b"index\tsentence1\tsentence2\tlabel\n"
BAD = {
    "three columns": (SENTENCE, b"a\t1\t\tb\na\t1\tb\n", r"line 2: 3 columns, expected 4"),
    "five columns": (SENTENCE, b"a\t1\t\tb\tc\n", r"line 1: 5 columns"),
    "unknown label": (SENTENCE, b"a\t1\t\tb\na\t2\t\tb\n", r"line 2: label '2' is not one of the task's: 0, 1"),
    "empty": (SENTENCE, b"", r"empty"),
    "only a BOM": (SENTENCE, b"\xef\xbb\xbf", r"empty"),
    "not UTF-8": (SENTENCE, b"a\t1\t\tb\na\t1\t\tcaf\xe9\n", r"line 2: not UTF-8 \(0xe9\)"),
    "no header": (PAIR, b"1\ta\tb\tyes\n", r"line 1: no column 'index'; needed index, sentence1, sentence2, label"),
    "a cell short": (PAIR, HEADER + b"1\ta\tyes\n", r"line 2: 3 columns, expected the header's 4"),
    "pair label": (PAIR, HEADER + b"1\ta\tb\tYes\n", r"line 2: label 'Yes' is not one of the task's: no, yes"),
    "only a header": (PAIR, HEADER, r"holds no items"),
    "no number": (REGRESSION, HEADER.replace(b"label", b"score") + b"1\ta\tb\thigh\n", r"line 2: score 'high'"),
    "not finite": (REGRESSION, HEADER.replace(b"label", b"score") + b"1\ta\tb\tnan\n", r"line 2: score 'nan'"),
    "no label column": (TAGGING, b"Ann\nran\n", r"line 1: 1 columns, expected at least 2"),
    "ragged": (TAGGING, b"Ann N O\nran O\n", r"line 2: 2 columns, expected 3"),
    "tag": (TAGGING, b"Ann I-LOC\n", r"line 1: label 'I-LOC' is not one of the task's: O, I-PER, B-PER"),
    "only DOCSTART": (TAGGING, b"-DOCSTART- O\n\n", r"holds no items"),
    "not JSON": (SPAN, b'{"data":\n [}', r"line 2: not JSON"),
    "other JSON": (SPAN, b'{"rows": []}', r"not in SQuAD's format \(KeyError: 'data'\)"),
    "no articles": (SPAN, b'{"data": []}', r"holds no items"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_an_error_that_names_file_and_line(case: str, tmp_path: Path) -> None:
    task, content, message = BAD[case]
    (tmp_path / "train.tsv").write_bytes(content)
    with pytest.raises(DataError, match=rf"train\.tsv(:|,) .*{message}") as error:
        read(task, tmp_path / "train.tsv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"a\t1\t\tb\n" * 999, mtime=0)[:-20], b"a\t1\t\tb\n", b""],
    ids=["cut short", "no gzip", "empty"],  # the bytes hold a time, which would name the test differently each second
)
def test_a_gzip_file_that_is_cut_short_or_none_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.tsv.gz").write_bytes(content)
    with pytest.raises(
        DataError, match=r"train.tsv.gz: (the compressed file is cut short or damaged|the file is empty)"
    ):
        read(SENTENCE, tmp_path / "train.tsv.gz")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.tsv: cannot be read"):
        read(SENTENCE, tmp_path / "none.tsv")


def squad(path: Path, answer: str, start: int) -> Path:
    qas: list[dict[str, object]] = [
        {"id": "q1", "question": "?", "answers": [{"text": answer, "answer_start": start}] if answer else []}
    ]
    paragraph = {"context": "in  New  York, now", "qas": qas}
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("answer", "start"), [("New York", 4), ("New  York", 2), (" New York ", 4), ("New York", 3)])
def test_an_answer_off_by_white_space_is_moved_and_counted(answer: str, start: int, tmp_path: Path) -> None:
    path = squad(tmp_path / "file", answer, start)
    (item,) = read(SPAN, path)
    assert item.gold == ("New  York",) and isinstance(item, SpanItem) and item.answers[0].start == 4
    assert defects(SPAN, path) == ["question q1: 1 answers were off by white space and have been moved"]


def test_an_answer_that_is_where_it_says_is_left_alone(tmp_path: Path) -> None:
    path = squad(tmp_path / "file", " New ", 3)
    (item,) = read(SPAN, path)
    assert isinstance(item, SpanItem) and item.answers == (Answer(" New ", 3),) and not defects(SPAN, path)


@pytest.mark.parametrize(("answer", "start"), [("New York", 5), ("Old York", 4), (" ", 2), ("York", -1), ("now", 99)])
def test_an_answer_that_is_elsewhere_is_an_error(answer: str, start: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"file, question q1: answer '.*' is not at "):
        read(SPAN, squad(tmp_path / "file", answer, start))


def test_a_question_without_an_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="question q1: no answer; SQuAD 1.1 answers"):
        read(SPAN, squad(tmp_path / "file", "", 0))


def test_a_torn_line_of_items_is_an_error(tmp_path: Path) -> None:
    write_items(tmp_path / "items.jsonl", [SentenceItem("0", "a", "1")])
    with (tmp_path / "items.jsonl").open("a") as file:
        file.write('{"id": "1", "sen')
    with pytest.raises(DataError, match=r"items.jsonl, line 2: not an item"):
        read_items(tmp_path / "items.jsonl")


# --- choosing --------------------------------------------------------------------------------------------------------


def test_an_items_side_depends_on_its_content_alone() -> None:
    items = [SentenceItem(str(number), f"sentence {number % 400}", "01"[number % 3 == 0]) for number in range(800)]
    train, select = split_select(items, 0.25)
    assert sorted([*train, *select], key=items.index) == items
    assert not {item.sentence for item in train} & {item.sentence for item in select}
    assert 120 < len(select) < 280
    again, _ = split_select(items[::-2], 0.25)
    assert set(again) <= set(train)


def test_too_few_items_to_hold_any_out_is_an_error() -> None:
    with pytest.raises(DataError, match="1 items are too few"):
        split_select([SentenceItem("0", "a", "1")], 0.1)


def test_the_types_of_the_cases_cover_every_kind_of_task() -> None:
    assert set(CASES) == set(Task.variants()) - {"multiple-choice", "minimal-pair"}  # no builder makes these
