"""The development data are read with exactly the counts that their README states, and their defects are said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paribus.data.check import Checked, check
from paribus.data.formats import ChoiceItem, PairItem, RegressionItem, SpanItem, TaggingItem, read
from paribus.project import Project, find, locate
from paribus.spec.load import build
from paribus.spec.task import Task

PROJECT: Project = find(Path(__file__).parents[3])

# task: items of train, dev, test (None: the data lack it)
COUNTS: dict[str, tuple[int | None, int | None, int | None]] = {
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "qqp": (26965, 23496, None),
    "mnli-m": (8999, 9815, None),
    "mnli-mm": (8999, None, None),
    "qnli": (8999, 5463, 5463),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
    "glue-diagnostic": (None, None, 1104),
    "squad": (76854, 10570, None),
    "squad2": (None, 11873, None),
    "race-middle": (25421, 1436, None),
    "race-high": (62445, 3451, None),
    "codah": (1665, 556, 2776),
    "conll2003": (14041, 3250, 3453),
    "wnut17": (3394, 1009, 1287),
    "masakhaner-hau": (5716, 816, 1633),
    "masakhaner-swa": (6593, 942, 1883),
    "masakhaner-wol": (4593, 656, 1312),
    "masakhaner-yor": (6876, 983, 1964),
    "udpos": (21253, 3974, None),
    "boolq": (64, 3270, 3245),
    "cb": (250, 56, 250),
    "copa": (400, 100, 500),
    "multirc": (27243, 4848, 9693),
    "record": (766, None, None),
    "wic": (5428, 638, 1400),
    "wsc": (554, 104, 146),
    "blimp": (None, 67000, None),
}

LABELS: dict[tuple[str, str], dict[str, int]] = {
    ("cola", "train"): {"0": 2528, "1": 6023},
    ("cola", "dev"): {"0": 322, "1": 721},
    ("sst2", "train"): {"0": 29780, "1": 37569},
    ("mrpc", "train"): {"0": 1194, "1": 2474},
    ("mrpc", "dev"): {"0": 129, "1": 279},
    ("qqp", "train"): {"0": 16983, "1": 9982},
    ("qqp", "dev"): {"0": 14749, "1": 8747},
    ("mnli-m", "train"): {"contradiction": 2958, "entailment": 3061, "neutral": 2980},
    ("mnli-m", "dev"): {"contradiction": 3213, "entailment": 3479, "neutral": 3123},
    ("qnli", "dev"): {"not_entailment": 2761, "entailment": 2702},
    ("rte", "dev"): {"not_entailment": 131, "entailment": 146},
    ("wnli", "dev"): {"0": 40, "1": 31},
    ("squad2", "dev"): {"answerable": 5928, "unanswerable": 5945},
    ("codah", "train"): {"0": 426, "1": 402, "2": 404, "3": 433},
    ("codah", "test"): {"0": 689, "1": 684, "2": 697, "3": 706},
    ("boolq", "dev"): {"False": 1237, "True": 2033},
    ("cb", "train"): {"contradiction": 119, "entailment": 115, "neutral": 16},
    ("copa", "train"): {"0": 195, "1": 205},
    ("multirc", "train"): {"0": 15218, "1": 12025},
    ("multirc", "dev"): {"0": 2773, "1": 2075},
    ("wic", "train"): {"False": 2714, "True": 2714},
    ("wsc", "dev"): {"False": 66, "True": 38},
    ("conll2003", "dev"): {"O": 42759, "I-LOC": 2094, "B-MISC": 4, "I-MISC": 1264, "I-ORG": 2092, "I-PER": 3149},
}

# What must be said of which file, in a note or of a row.
SAID: dict[tuple[str, str], str] = {
    ("cola", "test"): "1063 items have no label",
    ("sst2", "train"): "371 items repeat the text of another",  # 66,978 of 67,349 differ
    ("qqp", "dev"): "line 2: 5 columns, expected the header's 6; left out",  # row 133273
    ("qqp", "train"): "the first is 'n/a' (8447 times)",
    ("wnli", "dev"): "65 first sentences are also in train, 54 of them only under another label",
    ("wsc", "dev"): "line 43: the pronoun 'it' is not word 30; word 31 was taken",
    ("blimp", "dev"): "67 paradigms of 12 phenomena",
    ("glue-diagnostic", "test"): "1104 items have no label",
}

GROUPS = {("multirc", "train"): 5131, ("multirc", "dev"): 953, ("multirc", "test"): 1820}
TOKENS = {("conll2003", "train"): 203621, ("conll2003", "dev"): 51362, ("conll2003", "test"): 46435}
TOKENS |= {("wnut17", "train"): 62730, ("wnut17", "dev"): 15733, ("wnut17", "test"): 23394}
TOKENS |= {("udpos", "train"): 375194, ("udpos", "dev"): 62632, ("masakhaner-yor", "train"): 175835}


@pytest.mark.parametrize("name", COUNTS)
def test_a_task_is_read_with_the_counts_of_its_readme(name: str, shared: Path) -> None:
    found: dict[str, Checked] = {file.split: file for file in check(PROJECT.task(name), shared)}
    for split, count in zip(("train", "dev", "test"), COUNTS[name], strict=True):
        if count is None:
            assert split not in found or not found[split].usable
            continue
        file = found[split]
        assert file.usable and file.items == count, file.file
        assert file.labels == LABELS.get((name, split), file.labels)
        assert file.groups == GROUPS.get((name, split), file.groups)
        assert sum(file.labels.values()) == TOKENS.get((name, split), sum(file.labels.values()))
        said = "\n".join([*file.notes, *file.defects])
        assert SAID.get((name, split), "") in said
        assert any("left out" in line for line in file.defects) == ((name, split) == ("qqp", "dev"))


def test_the_official_counts_of_complete_sets_are_those_that_are_read(shared: Path) -> None:
    complete = "cola sst2 mrpc stsb rte wnli cb copa wic wsc multirc conll2003 blimp"
    assert all(file.complete for name in complete.split() for file in check(PROJECT.task(name), shared))
    assert [file.complete for file in check(PROJECT.task("qnli"), shared)] == [False, True, True]


def test_seven_pairs_of_blimp_are_equal(shared: Path) -> None:
    (file,) = check(PROJECT.task("blimp"), shared)
    assert len(file.defects) == 7
    assert sum(line.startswith("principle_A_case_2") for line in file.defects) == 5


@pytest.mark.parametrize("language", "ar bg de el en es fr hi ru sw th tr ur vi zh".split())
def test_xnli_has_2490_and_5010_rows_in_each_language(language: str, shared: Path) -> None:
    task = PROJECT.task(f"xnli-{language}")
    for name, count, test in (("xnli.dev.tsv", 2490, False), ("xnli.test.tsv", 5010, True)):
        labels = [item.gold for item in read(task, locate(shared / "xnli", name), test).items]
        assert len(labels) == count and {labels.count(label) for label in ("entailment", "neutral")} == {count // 3}


@pytest.mark.parametrize("language", "ar de el en es hi ro ru th tr vi zh".split())
def test_xquad_has_1190_questions_in_each_language(language: str, shared: Path) -> None:
    task = PROJECT.task(f"xquad-{language}")
    assert len(read(task, locate(shared / "xquad", f"xquad.{language}.json")).items) == 1190


def test_squads_answers_are_where_they_say(shared: Path) -> None:
    task = PROJECT.task("squad")
    reading = read(task, locate(shared / "squad", "dev-v1.1.json"))
    spans = [item for item in reading.items if isinstance(item, SpanItem)]
    assert sum(len(item.answers) for item in spans) == 34726 and not reading.defects


def test_first_items_are_those_of_the_files(shared: Path) -> None:
    def first(name: str, file: str) -> Any:
        task = PROJECT.task(name)
        return read(task, locate(shared / task.data.path, file)).items[0]  # type: ignore[attr-defined]

    assert first("conll2003", "eng.train") == TaggingItem(
        "0",
        ("EU", "rejects", "German", "call", "to", "boycott", "British", "lamb", "."),
        ("I-ORG", "O", "I-MISC", "O", "O", "O", "I-MISC", "O", "O"),
    )
    assert first("stsb", "dev.tsv") == RegressionItem(
        "0", "A man with a hard hat is dancing.", "A man wearing a hard hat is dancing.", 5.0
    )
    assert first("codah", "train.csv") == ChoiceItem(
        "0",
        "The chicken cannot fly.",
        "It",
        ("flies.", "spreads its wings and flies.", "crosses the road.", "tries to fly and succeeds."),
        2,
    )
    assert first("wic", "train.jsonl") == PairItem(
        "0",
        "place: Do you want to come over to my place later?",
        "A political system with no place for the less prominent groups.",
        "False",
    )


def others() -> Iterator[tuple[str, dict[str, Any], int]]:
    """Sets without a task file of their own: a few lines of YAML each."""
    nli = {"columns": {"sentence1": "sentence1", "sentence2": "sentence2", "label": "gold_label"}}
    pair = {"kind": "pair", "labels": ["contradiction", "entailment", "neutral"], "metrics": ["accuracy"]}
    for path, count in (("snli/train.tsv", 8999), ("glue_data/MNLI/train_extra.tsv", 9653)):
        yield path, {**pair, "format": {"kind": "tsv", **nli}}, count
    rated = {"kind": "tsv", "columns": {"id": 0, "score": 1, "sentence1": 2}, "header": False}
    for name, count in (("amazonReview", 3708), ("movieReview", 10605), ("nytEditorial", 5190), ("tweets", 4200)):
        path = f"vader_snippets/{name}{'' if name == 'tweets' else 'Snippets'}_GroundTruth.txt"
        yield path, {"kind": "regression", "metrics": ["pearson"], "format": rated}, count
    choice = {"kind": "multiple-choice", "metrics": ["accuracy"]}
    yield "winograd/WSCollection.xml", {**choice, "format": {"kind": "winograd"}}, 285
    for part, count in (("in_domain_train", 8551), ("in_domain_dev", 527), ("out_of_domain_dev", 516)):
        yield f"glue_data/CoLA/original/raw/{part}.tsv", {"kind": "sentence", "metrics": ["mcc"], "format": None}, count
    nli2 = {"columns": {"sentence1": "premise", "sentence2": "hypothesis", "label": "label"}}
    for part, count in (("train", 2490), ("val", 277)):
        labels = {"labels": ["entailment", "not_entailment"]}
        yield f"superglue/RTE/{part}.jsonl", {**pair, **labels, "format": {"kind": "jsonl", **nli2}}, count


@pytest.mark.parametrize(("path", "fields", "count"), [pytest.param(*each, id=each[0]) for each in others()])
def test_other_sets_are_read_by_naming_columns(path: str, fields: dict[str, Any], count: int, shared: Path) -> None:
    named = {"path": ".", "train": path, "format": fields["format"]}
    given = {**fields, "name": "t", "source": "s", "data": {"kind": "folder", **named}}
    task = build(Task, {key: value for key, value in given.items() if key != "format"}, "t.yaml")
    assert len(read(task, locate(shared, path)).items) == count
