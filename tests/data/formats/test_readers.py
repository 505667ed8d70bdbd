"""Each official layout, in miniature: what is read from it, what is said of a bad row, and where a file may lie."""

import csv
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from paribus.data.formats import (
    READERS,
    Answer,
    ChoiceItem,
    Item,
    MinimalPairItem,
    PairItem,
    Reading,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
    read,
    split_select,
)
from paribus.errors import DataError, SpecError
from paribus.project import Source, locate
from paribus.spec.load import build
from paribus.spec.task import Format, Task

METRIC = {"regression": "pearson", "span-qa": "em", "tagging": "entity-f1"}


def task(kind: str, format: dict[str, Any] | None = None, **fields: Any) -> Task:
    data = {"kind": "folder", "path": ".", "format": format, **fields.pop("data", {})}
    given = {"name": "t", "source": "s", "kind": kind, "metrics": [METRIC.get(kind, "accuracy")], "data": data}
    return build(Task, {**given, **fields}, "t.yaml")


def reading(task: Task, path: Path, text: str | bytes, test: bool = False) -> Reading:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(task, Source(path), test)


def items(*arguments: Any, **keywords: Any) -> list[Item]:
    return reading(*arguments, **keywords).items


NLI = {"sentence1": "s1", "sentence2": "s2", "label": "gold"}
PAIR = task("pair", {"kind": "tsv", "columns": NLI}, labels=["no", "yes"])
GOOD = "".join(f"x\ta{number}\tb\tyes\n" for number in range(200))
HEADER = "n\ts1\ts2\tgold\n"


def test_every_format_has_a_reader() -> None:
    assert {format.model_fields["kind"].default for format in READERS} == set(Format.variants())


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_columns_are_found_by_name_wherever_they_are(mark: bytes, end: bytes, tmp_path: Path) -> None:
    text = mark + end.join([b"gold\tx\ts2\ts1", b'yes\t\tNA\t"a', b"no\t\tnull\tn/a"])
    assert items(PAIR, tmp_path / "f", text) == [PairItem("0", '"a', "NA", "yes"), PairItem("1", "n/a", "null", "no")]


def test_columns_are_found_by_number_where_there_is_no_header(tmp_path: Path) -> None:
    codah = task(
        "multiple-choice",
        {"kind": "tsv", "columns": {"part": 0, "question": 1, "options": [2, 3], "label": 4}, "header": False},
    )
    assert items(codah, tmp_path / "f", "o\tI am\tin.\tout.\t1\n") == [
        ChoiceItem("0", "", "I am", ("in.", "out."), 1, "o")
    ]


def test_only_rows_of_the_language_asked_for_are_read(tmp_path: Path) -> None:
    english = task("pair", {"kind": "tsv", "columns": NLI, "where": {"language": "en"}}, labels=["no", "yes"])
    text = "language\ts1\ts2\tgold\nar\ta\tb\tyes\nen\tc\td\tno\n"
    assert items(english, tmp_path / "f", text) == [PairItem("0", "c", "d", "no")]
    # MNLI's own file, which XNLI's models are tuned on, has no such column and is read whole.
    assert len(items(english, tmp_path / "f", HEADER + GOOD)) == 200


def test_a_row_of_other_width_is_left_out_and_said_with_its_line(tmp_path: Path) -> None:
    found = reading(PAIR, tmp_path / "f", HEADER + GOOD + "x\ta\tb yes\n" + GOOD)
    assert len(found.items) == 400 and found.left_out == 1
    assert [str(defect) for defect in found.defects] == ["line 202: 3 columns, expected the header's 4"]
    assert found.summary() == ["1 of 401 rows left out; it is line 202: 3 columns, expected the header's 4"]


def test_more_than_one_bad_row_in_a_hundred_refuses_the_file(tmp_path: Path) -> None:
    assert reading(PAIR, tmp_path / "f", HEADER + GOOD + "x\n" * 2).left_out == 2
    with pytest.raises(DataError, match=r"f, line 202: 1 columns.* \(3 of 203 rows cannot be read\)"):
        reading(PAIR, tmp_path / "f", HEADER + GOOD + "x\n" * 3)


def test_an_empty_side_is_kept_and_said(tmp_path: Path) -> None:
    found = reading(PAIR, tmp_path / "f", HEADER + "x\ta\t\tyes\n")
    assert found.items == [PairItem("0", "a", "", "yes")] and found.left_out == 0
    assert [str(defect) for defect in found.defects] == ["line 2: sentence2 is empty"]


@pytest.mark.parametrize("text", ["s1\ts2\na\tb\n", "s1\ts2\tgold\na\tb\t-1\n", "s1\ts2\tgold\na\tb\t\n"])
def test_labels_that_are_missing_or_minus_one_are_for_test_files_alone(text: str, tmp_path: Path) -> None:
    assert items(PAIR, tmp_path / "f", text, test=True) == [PairItem("0", "a", "b", None)]
    with pytest.raises(DataError, match="no column 'gold'|label '(-1)?' is not one of the task's"):
        reading(PAIR, tmp_path / "f", text)
    with pytest.raises(DataError, match="label 'maybe' is not one"):
        reading(PAIR, tmp_path / "f", "s1\ts2\tgold\na\tb\tmaybe\n", test=True)


def test_a_test_file_may_be_laid_out_in_its_own_way(tmp_path: Path) -> None:
    cola = task("sentence", data={"test_format": {"kind": "tsv", "columns": {"id": "index", "sentence": "sentence"}}})
    assert items(cola, tmp_path / "f", "index\tsentence\n7\tHe ran.\n", test=True) == [
        SentenceItem("7", "He ran.", None)
    ]
    assert items(cola, tmp_path / "f", "gj04\t0\t*\tHe runned.\n") == [
        SentenceItem("0", "He runned.", "0", "gj04", "*")
    ]


def test_a_regression_may_have_one_sentence_and_a_test_file_no_score(tmp_path: Path) -> None:
    rated = task("regression", {"kind": "tsv", "columns": {"id": 0, "score": 1, "sentence1": 2}, "header": False})
    assert items(rated, tmp_path / "f", "a\t-2.5\tBad.\n") == [RegressionItem("a", "Bad.", "", -2.5)]
    assert items(rated, tmp_path / "f", "a\t\tBad.\n", test=True) == [RegressionItem("a", "Bad.", "", None)]


SWAG = task(
    "multiple-choice",
    {
        "kind": "csv",
        "columns": {"context": "sent1", "question": "sent2", "options": ["ending0", "ending1"], "label": "label"},
    },
)


def test_csv_cells_may_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    out = io.StringIO()
    csv.writer(out).writerows(
        [["", "sent1", "sent2", "ending0", "ending1", "label"], ["0", 'a "b", c', "He\nran", "x", "y", "1"]]
    )
    assert items(SWAG, tmp_path / "f", out.getvalue()) == [ChoiceItem("0", 'a "b", c', "He\nran", ("x", "y"), 1)]
    with pytest.raises(DataError, match=r"f, line 2: label '2' is not the number of an option, 0 to 1"):
        reading(SWAG, tmp_path / "f", "sent1,sent2,ending0,ending1,label\na,b,c,d,2\n")
    with pytest.raises(DataError, match=r"f, line 2: not CSV"):
        reading(SWAG, tmp_path / "f", 'sent1,sent2,ending0,ending1,label\na,b,c,d,"1\n')


def test_json_lines_are_found_by_dotted_path_and_their_truth_values_are_labels(tmp_path: Path) -> None:
    boolq = task(
        "pair",
        {"kind": "jsonl", "columns": {"id": "idx", "sentence1": "q", "sentence2": "passage.text", "label": "label"}},
        labels=["False", "True"],
    )
    row = {"q": "is it", "passage": {"text": "It is."}, "idx": 4, "label": True}
    assert items(boolq, tmp_path / "f", json.dumps(row)) == [PairItem("4", "is it", "It is.", "True")]
    for bad, message in (
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps({**row, "q": 3}), "sentence1: a text was expected, found 3"),
        (json.dumps({**row, "label": None}), "label None is not one"),
    ):
        with pytest.raises(DataError, match=rf"f, line 1: {message}"):
            reading(boolq, tmp_path / "f", bad)


@pytest.mark.parametrize(
    ("kind", "format", "message"),
    [
        ("pair", {"kind": "squad"}, "data.format: 'squad' is not for kind 'pair'; accepted: tsv, csv, jsonl, multirc"),
        ("pair", {"kind": "tsv", "columns": {"sentence1": "a"}}, "data.format.columns: no column for 'sentence2'"),
        ("multiple-choice", None, "data.format: kind 'multiple-choice' has none of its own; name one"),
    ],
)
def test_a_format_that_cannot_make_the_kind_is_refused_at_load(
    kind: str, format: dict[str, Any] | None, message: str
) -> None:
    labels = {"labels": ["a", "b"]} if kind == "pair" else {}
    with pytest.raises(SpecError) as error:
        task(kind, format, **labels)
    assert str(error.value).startswith(f"t.yaml: {message}") and "\n" not in str(error.value)


# --- questions, choices, tags ----------------------------------------------------------------------------------------


def squad(*questions: dict[str, Any]) -> str:
    return json.dumps({"data": [{"title": "", "paragraphs": [{"context": "one two", "qas": list(questions)}]}]})


def test_unanswerable_questions_have_no_answer(tmp_path: Path) -> None:
    text = squad(
        {"id": "a", "question": "q", "answers": [], "is_impossible": True, "plausible_answers": []},
        {"id": "b", "question": "q", "answers": [{"text": "two", "answer_start": 4}], "is_impossible": False},
    )
    found = items(task("span-qa", unanswerable=True), tmp_path / "f", text)
    assert found == [SpanItem("a", "q", "one two", ()), SpanItem("b", "q", "one two", (Answer("two", 4),))]


def race(folder: Path, name: str, answers: list[str]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    questions = [f"q{number}?" for number in range(len(answers))]
    data = {"article": "Text.", "questions": questions, "options": [list("wxyz")] * len(answers), "answers": answers}
    path.write_text(json.dumps({**data, "id": f"{path.parent.name}{path.stem}.txt"}))


@pytest.mark.parametrize("packed", [None, "tar.gz", "zip"])
def test_race_is_read_by_level_from_a_folder_or_an_archive(packed: str | None, tmp_path: Path) -> None:
    race(tmp_path, "RACE/dev/middle/10.txt", ["A"])
    race(tmp_path, "RACE/dev/middle/9.txt", ["B", "D"])
    race(tmp_path, "RACE/dev/high/1.txt", ["C"])
    race(tmp_path, "RACE/train/high/1.txt", ["C"])
    (tmp_path / "RACE/dev/.DS_Store").write_bytes(b"\x80")
    if packed == "tar.gz":
        with tarfile.open(tmp_path / "RACE.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / "RACE", "RACE")
    elif packed:
        with zipfile.ZipFile(tmp_path / "RACE.zip", "w") as archive:
            for path in sorted((tmp_path / "RACE").rglob("*")):
                archive.write(path, path.relative_to(tmp_path))
    if packed:
        (tmp_path / "RACE").rename(tmp_path / "elsewhere")
    middle = task("multiple-choice", {"kind": "race", "levels": ["middle"]})
    source = locate(tmp_path, "RACE/dev")
    assert bool(source.inside) == bool(packed)
    found = read(middle, source).items
    assert [(item.id, item.gold) for item in found] == [
        ("middle/middle9.txt-0", 1),
        ("middle/middle9.txt-1", 3),
        ("middle/middle10.txt-0", 0),
    ]
    assert found[0] == ChoiceItem("middle/middle9.txt-0", "Text.", "q0?", tuple("wxyz"), 1, "middle")
    assert len(read(task("multiple-choice", {"kind": "race"}), source).items) == 4
    with pytest.raises(DataError, match="has no RACE/test, neither as it is, with .gz, nor in an archive"):
        locate(tmp_path, "RACE/test")


def test_a_passage_of_race_with_another_answer_is_said(tmp_path: Path) -> None:
    race(tmp_path, "high/1.txt", ["E"])
    with pytest.raises(DataError, match=r"high/1.txt: question 'q0\?': 4 options, answer 'E'; expected 4, A to D"):
        read(task("multiple-choice", {"kind": "race"}), Source(tmp_path))


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "RACE.tar.gz").write_bytes(gzip.compress(b"no tar")[:-4])
    with pytest.raises(DataError, match="has no RACE/dev"):
        locate(tmp_path, "RACE/dev")
    with pytest.raises(DataError, match="cut short or damaged"):
        read(task("multiple-choice", {"kind": "race"}), Source(tmp_path / "RACE.tar.gz", "RACE/dev"))


def test_a_locked_archive_is_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.tsv", HEADER + GOOD)
    data = bytearray((tmp_path / "t.zip").read_bytes())
    for start in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[start] |= 1  # says that a password is needed
    (tmp_path / "t.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"t\.zip: cannot be unpacked \(File 't\.tsv' is encrypted"):
        read(PAIR, locate(tmp_path, "t.tsv"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"a \\ud800 b"', "not JSON (half of a surrogate pair)"),
        ('"a \\ude00 b"', "not JSON (half of a surrogate pair)"),
        ("[" * 100_000, "not JSON (nested too deep)"),
        ("1" * 5000, "not JSON (Exceeds the limit"),
    ],
    ids=["high half", "low half", "deep", "long number"],
)
def test_json_that_python_reads_but_nothing_can_store_is_a_bad_row(value: str, said: str, tmp_path: Path) -> None:
    lines = task("sentence", {"kind": "jsonl", "columns": {"sentence": "text", "label": "label"}})
    good = '{"text": "x", "label": 1}\n' * 200
    found = reading(lines, tmp_path / "t.jsonl", f'{good}{{"text": {value}, "label": 1}}\n')
    assert len(found.items) == 200
    (defect,) = found.defects
    assert str(defect).startswith(f"line 201: {said}") and defect.left_out
    passages = '{"data": [{"paragraphs": [{"context": ' + value + ', "qas": []}]}]}'
    with pytest.raises(DataError, match="not JSON"):
        reading(task("span-qa"), tmp_path / "t.json", passages)


def test_a_character_written_as_a_surrogate_pair_and_an_escaped_backslash_are_text(tmp_path: Path) -> None:
    lines = task("sentence", {"kind": "jsonl", "columns": {"sentence": "text", "label": "label"}})
    text = '{"text": "\\ud83d\\ude00", "label": 1}\n{"text": "\\\\ud800", "label": 1}\n'
    assert [item.content for item in items(lines, tmp_path / "t.jsonl", text)] == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize(
    "paragraph",
    [{"context": None}, {"context": ["a b"]}, {"question": None}, {"answers": [{"text": 7, "answer_start": 0}]}],
    ids=str,
)
def test_a_question_whose_parts_are_no_texts_is_not_in_squads_format(paragraph: dict[str, Any], tmp_path: Path) -> None:
    question = {"id": "q", "question": "What?", "answers": [{"text": "a", "answer_start": 0}], **paragraph}
    data = {"data": [{"paragraphs": [{"context": question.pop("context", "a b"), "qas": [question]}]}]}
    with pytest.raises(DataError, match="t.json, paragraph 0: not in SQuAD's format"):
        reading(task("span-qa"), tmp_path / "t.json", json.dumps(data))


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ({"kind": "tsv", "header": False, "columns": {"sentence": "text", "label": 1}}, "columns.sentence: without a"),
        ({"kind": "tsv", "header": False, "columns": {"sentence": -1, "label": 1}}, "a number from 0, found -1"),
        (
            {"kind": "tsv", "header": False, "columns": {"sentence": 0, "label": 1}, "where": {"language": "sw"}},
            "where: needs a header that names 'language'",
        ),
        ({"kind": "csv", "columns": {"sentence": ["a", "b"], "label": "l"}}, "only `options` takes several columns"),
        (
            {"kind": "jsonl", "columns": {"sentence": "a", "label": "l", "sentence2": "b"}},
            "columns.sentence2: kind 'sentence' has no such field; accepted: sentence, label, source, note, id",
        ),
    ],
)
def test_columns_that_would_be_read_as_nothing_are_refused_at_load(format: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        task("sentence", format)
    assert said in str(error.value) and "t.yaml: data.format" in str(error.value)


@pytest.mark.parametrize("labels", [[], ["yes"], ["yes", "no", "yes"]], ids=str)
def test_labels_are_at_least_two_and_each_named_once(labels: list[str]) -> None:
    for kind in ("sentence", "pair", "tagging"):
        with pytest.raises(SpecError, match="labels: .*(at least 2|named twice)"):
            task(kind, labels=labels)


def test_a_labels_column_that_is_not_there_is_said(tmp_path: Path) -> None:
    seventh = task("tagging", {"kind": "conll", "label": 7}, labels=["O", "B-PER"])
    with pytest.raises(DataError, match="line 1: 2 columns, no column 7 with the label"):
        reading(seventh, tmp_path / "t.conll", "Ann B-PER\nsat O\n")


def test_a_sentence_with_a_bad_line_is_left_out_whole(tmp_path: Path) -> None:
    tags = task("tagging", labels=["O", "B-X"])
    good = "a O\nb B-X\n\n" * 150
    found = reading(tags, tmp_path / "f", good + "c O\nd B-Y\n\n" + "e O\n")
    assert len(found.items) == 151 and found.items[-1] == TaggingItem("151", ("e",), ("O",))
    assert [str(defect) for defect in found.defects] == ["line 452: label 'B-Y' is not one of the task's: O, B-X"]


def test_the_labels_column_may_be_another_than_the_last(tmp_path: Path) -> None:
    pos = task("tagging", {"kind": "conll", "label": 1}, labels=["N", "V"])
    assert items(pos, tmp_path / "f", "dogs N O\nrun V O\n") == [TaggingItem("0", ("dogs", "run"), ("N", "V"))]


def test_blimp_names_paradigm_and_phenomenon_and_says_which_pairs_are_equal(tmp_path: Path) -> None:
    rows = [
        {"sentence_good": good, "sentence_bad": "b", "UID": "u", "linguistics_term": term, "pairID": str(number)}
        for number, (good, term) in enumerate([("a", "binding"), ("b", "s-selection")])
    ]
    (tmp_path / "u.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read(task("minimal-pair"), Source(tmp_path))
    assert found.items == [
        MinimalPairItem("u-0", "a", "b", "u", "binding"),
        MinimalPairItem("u-1", "b", "b", "u", "argument_structure"),
    ]
    assert [str(defect) for defect in found.defects] == ["u.jsonl line 2: both sentences are 'b'"]


# --- SuperGLUE -------------------------------------------------------------------------------------------------------


def test_copa_asks_for_the_cause_or_the_result(tmp_path: Path) -> None:
    row = {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1, "idx": 3}
    assert items(task("multiple-choice", {"kind": "copa"}), tmp_path / "f", json.dumps(row)) == [
        ChoiceItem("3", "It fell.", "What was the CAUSE of this?", ("a", "b"), 1)
    ]


MULTIRC = {
    "idx": 2,
    "passage": {
        "text": "P",
        "questions": [
            {"question": "q?", "idx": 5, "answers": [{"text": t, "idx": i, "label": i} for i, t in enumerate("xy")]}
        ],
    },
}


def test_multirc_is_a_pair_an_answer_grouped_by_question(tmp_path: Path) -> None:
    multirc = task("pair", {"kind": "multirc"}, labels=["0", "1"])
    found = items(multirc, tmp_path / "f", json.dumps(MULTIRC))
    assert found == [PairItem(f"2-5-{n}", "P", f"q? {t}", str(n), "2-5", t) for n, t in enumerate("xy")]


def test_record_is_a_pair_an_entity_grouped_by_query(tmp_path: Path) -> None:
    text = "Ann met Bob, and Ann left.\n@highlight\nAll is well"
    places = [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 17, "end": 19}]
    query = {"query": "@placeholder left", "idx": 9, "answers": [{"text": "Ann", "start": 0, "end": 2}]}
    row = {"idx": 1, "passage": {"text": text, "entities": places}, "qas": [query]}
    record = task("pair", {"kind": "record"}, labels=["False", "True"])
    passage = "Ann met Bob, and Ann left. All is well"
    expected = [("Ann left", "True", "Ann"), ("Bob left", "False", "Bob")]
    assert items(record, tmp_path / "f", json.dumps(row)) == [
        PairItem(f"1-9-{n}", passage, text, label, "1-9", entity) for n, (text, label, entity) in enumerate(expected)
    ]
    row["qas"] = [{"query": "@placeholder left", "idx": 9}]
    assert {item.gold for item in items(record, tmp_path / "f", json.dumps(row), test=True)} == {None}
    with pytest.raises(DataError, match="query 9 has no answers"):
        reading(record, tmp_path / "f", json.dumps(row))


def test_wic_names_the_word_first(tmp_path: Path) -> None:
    row = {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "idx": 0, "label": False}
    wic = task("pair", {"kind": "wic"}, labels=["False", "True"])
    assert items(wic, tmp_path / "f", json.dumps(row)) == [PairItem("0", "bank: A bank.", "The bank.", "False")]


@pytest.mark.parametrize(
    ("index", "said"), [(3, []), (2, ["line 1: the pronoun 'he' is not word 2; word 3 was taken"])]
)
def test_wsc_marks_the_pronoun_and_finds_one_that_is_off(index: int, said: list[str], tmp_path: Path) -> None:
    target = {"span1_text": "Ann", "span1_index": 0, "span2_text": "he", "span2_index": index}
    row = {"text": "Ann ran because he, Bob, ran.", "target": target, "idx": 0, "label": True}
    wsc = task("pair", {"kind": "wsc"}, labels=["False", "True"])
    found = reading(wsc, tmp_path / "f", json.dumps(row))
    assert found.items == [PairItem("0", "Ann ran because *he,* Bob, ran.", "Ann", "True")]
    assert [str(defect) for defect in found.defects] == said
    row["target"] = {**target, "span2_text": "she"}
    with pytest.raises(DataError, match="line 1: the pronoun 'she' is not in"):
        reading(wsc, tmp_path / "f", json.dumps(row))


def test_a_row_that_lacks_a_key_is_said_by_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f, line 1: not in the task's format \(KeyError: 'passage'\)"):
        reading(task("pair", {"kind": "multirc"}, labels=["0", "1"]), tmp_path / "f", "{}")


def test_winograd_schemas_are_choices_between_two_phrases(tmp_path: Path) -> None:
    schema = (
        "<schema><text><txt1>Caf\xe9s close</txt1><pron> they </pron><txt2>rest.\n</txt2></text>"
        "<quote><quote1/><pron>they</pron><quote2>rest</quote2></quote>"
        "<answers><answer>a </answer><answer> b</answer></answers><correctAnswer> B. </correctAnswer></schema>"
    )
    xml = f'<?xml version="1.0" encoding="ISO-8859-1"?><collection>{schema}</collection>'.encode("latin-1")
    assert items(task("multiple-choice", {"kind": "winograd"}), tmp_path / "f", xml) == [
        ChoiceItem("0", "Caf\xe9s close they rest.", "they rest", ("a", "b"), 1)
    ]


def test_the_answers_to_one_question_are_held_out_together() -> None:
    pairs = [PairItem(f"{g}-{n}", "P", f"{g} {n}", "0", f"g{g}") for g in range(60) for n in range(5)]
    train, select = split_select(pairs, 0.3)
    assert {item.group for item in train}.isdisjoint(item.group for item in select)
    assert len(train) + len(select) == 300 and len(select) % 5 == 0 and len(select) > 0
