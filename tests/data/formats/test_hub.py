"""Sets of the Hub: rows by column name, numbered labels by their names, and one line where a set cannot be had."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus.data.formats import PairItem, RegressionItem, read_split
from paribus.errors import DataError, SpecError
from paribus.plan.plan import plan
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.task import Hub, Task

datasets = pytest.importorskip("datasets")

HUB = {"kind": "hub", "name": "nyu-mll/glue", "config": "rte", "revision": "0" * 40}
COLUMNS = {"id": "idx", "sentence1": "premise", "sentence2": "hypothesis", "label": "label"}
ROWS = {"idx": [3, 4], "premise": ["a", "null"], "hypothesis": ["b", "d"], "label": [1, 0]}


def task(kind: str = "pair", columns: dict[str, str] = COLUMNS, **fields: Any) -> tuple[Hub, Task]:
    given = fields or {"labels": ["yes", "no"]}
    data = {**HUB, "columns": columns}
    found = build(Task, {"name": "t", "source": "s", "kind": kind, "metrics": ["accuracy"], "data": data, **given}, "t")
    assert isinstance(found.data, Hub)
    return found.data, found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked of the Hub, which answers with ROWS."""
    asked: dict[str, Any] = {}

    def load(name: str, config: str | None, **more: Any) -> Any:
        asked.update(more, name=name, config=config)
        types = {"idx": "int32", "premise": "string", "hypothesis": "string"}
        features = {column: datasets.Value(type_) for column, type_ in types.items()}
        features["label"] = datasets.ClassLabel(names=["yes", "no"])
        return datasets.Dataset.from_dict(ROWS, features=datasets.Features(features))

    monkeypatch.setattr("datasets.load_dataset", load)
    return asked


def test_rows_are_read_by_column_and_labels_by_the_sets_own_names(asked: dict[str, Any]) -> None:
    assert read_split(*task(), "validation").items == [PairItem("3", "a", "b", "no"), PairItem("4", "null", "d", "yes")]
    assert asked == {"name": "nyu-mll/glue", "config": "rte", "split": "validation", "revision": "0" * 40}


def test_numbers_that_are_no_labels_stay_numbers(asked: dict[str, Any]) -> None:
    columns = {"sentence1": "premise", "score": "idx"}
    hub, rated = task("regression", columns, metrics=["pearson"])
    assert read_split(hub, rated, "train").items[0] == RegressionItem("0", "a", "", 3.0)


def test_what_the_set_lacks_is_named(asked: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="task t: nyu-mll/glue has no column 'text'; found idx, premise, "):
        read_split(*task(columns={**COLUMNS, "sentence1": "text"}), "train")
    with pytest.raises(DataError, match="label 'no' is not one of the task's: ja, nein"):
        read_split(*task(labels=["ja", "nein"]), "train")


def test_a_set_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(DataError) as error:
        read_split(*task(), "train")
    assert str(error.value) == "task t: nyu-mll/glue cannot be had from the Hub: Couldn't reach the Hub"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"revision": "main"}, 'data.revision: found "main"'),
        ({"name": "../data"}, 'data.name: found "../data"'),
        ({"columns": {"sentence1": "a", "sentence2": "b"}}, "data.columns: no column for 'label'"),
    ],
)
def test_a_set_without_commit_name_or_columns_is_refused_at_load(change: dict[str, Any], message: str) -> None:
    given = {"name": "t", "source": "s", "kind": "pair", "labels": ["a", "b"], "metrics": ["accuracy"]}
    with pytest.raises(SpecError) as error:
        build(Task, {**given, "data": {**HUB, "columns": COLUMNS, **change}}, "t.yaml")
    assert str(error.value).startswith(f"t.yaml: {message}")


def test_planning_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tasks", "experiments"):
        (tmp_path / folder).mkdir()
    (tmp_path / "paribus.toml").touch()
    (tmp_path / "tasks/hub.yaml").write_text(
        "{kind: pair, source: s, labels: [a, b], metrics: [accuracy], data: {kind: hub, name: x, revision: "
        f"{'0' * 39}a, columns: {{sentence1: a, sentence2: b, label: c}}}}}}"
    )
    (tmp_path / "experiments/mine.yaml").write_text(
        "{question: 'q?', expect: e, base: bert-relative, factors: [masking], seeds: 1, tasks: [hub]}"
    )
    assert plan(find(tmp_path), "mine", "debug").runs
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert importlib.util.find_spec("datasets") is None
    with pytest.raises(DataError, match=r"task hub: data.kind hub needs .* pip install 'paribus\[datasets\]'"):
        plan(find(tmp_path), "mine", "debug")
