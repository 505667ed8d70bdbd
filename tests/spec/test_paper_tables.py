import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paribus.errors import SpecError
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.table import PaperTable
from paribus.tables.papers import check, index

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "dashboards" / "papers"
PROJECT = find(ROOT)
GOOD = yaml.safe_load((FOLDER / "roberta-table1.yaml").read_text())
RECIPE = yaml.safe_load((FOLDER / "roberta-hyperparameters-finetuning.yaml").read_text())


@pytest.fixture(scope="module")
def tables() -> dict[str, PaperTable]:
    return {name: PROJECT.tables.get(name) for name in PROJECT.tables}


def test_every_shipped_table_loads_and_all_agree(tables: dict[str, PaperTable]) -> None:
    assert len(list(FOLDER.glob("*.yaml"))) >= 75
    assert {path.stem for path in FOLDER.glob("*.yaml")} <= set(tables)
    assert check(tables, (FOLDER / "README.md").read_text()) == []


def test_values_are_kept_as_printed(tables: dict[str, PaperTable]) -> None:
    dynamic = next(row for row in tables["roberta-table1"].rows if row.key == "dynamic")
    assert dynamic.values == {"squad2_f1": 78.7, "mnli_m_acc": 84.0, "sst2_acc": 92.9}
    assert [type(value) for value in dynamic.values.values()] == [float] * 3


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def cell(value: Any) -> Callable[[Any], None]:
    return put("rows", 0, "values", "squad2_f1", value=value)


DEFECTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "an unknown key": (put("seeds", value=[]), "seeds: no such key"),
    "an id that is no slug": (put("id", value="Table 1"), "id: found"),
    "no title": (put("title", value=" "), "title: found"),
    "no protocol": (put("protocol", value=""), "protocol: found"),
    "an unknown kind": (put("kind", value="study"), "kind: found"),
    "an ablation of nothing": (put("factor", value=None), "factor must be given for an ablation"),
    "a result with a factor": (put("kind", value="result"), "factor is for ablations"),
    "a factor that is no slug": (put("factor", value="the mask"), "factor: found"),
    "a paper key that is no slug": (put("paper", "key", value="Ro BERTa"), "paper.key: found"),
    "an arXiv number of another form": (put("paper", "arxiv", value="cs/0101001"), "paper.arxiv: found"),
    "another year than arXiv's": (put("paper", "year", value=2020), "year must be that of arXiv 1907.11692"),
    "a paper's year out of range": (put("paper", value={**GOOD["paper"], "arxiv": None, "year": 1905}), "paper.year"),
    "a table number in words": (put("paper", "table", value="one"), "paper.table"),
    "no columns": (put("columns", value=[]), "columns: found"),
    "no rows": (put("rows", value=[]), "rows: found"),
    "a column key that is no slug": (put("columns", 0, "key", value="SQuAD"), "columns.0.key: found"),
    "an unknown metric": (put("columns", 0, "metric", value="accuracy"), "metric must be one of"),
    "a score without a split": (put("columns", 0, "split", value=None), "a score needs a task and a split"),
    "a score without a task": (put("columns", 0, "task", value=None), "a score needs a task and a split"),
    "a setting with a task": (put("columns", 0, "metric", value="setting"), "other columns have neither"),
    "the wrong direction": (put("columns", 0, "higher_is_better", value=False), "higher_is_better of f1 must be True"),
    "two columns of one key": (put("columns", 1, "key", value="squad2_f1"), "column squad2_f1: given twice"),
    "two columns of one label": (put("columns", 1, "label", value="SQuAD 2.0 F1"), "column label SQuAD 2.0 F1"),
    "two rows of one key": (put("rows", 1, "key", value="reference"), "row reference: given twice"),
    "a cell of no column": (put("rows", 0, "values", "mrpc", value=1.0), "values must name every column in order"),
    "cells out of order": (
        put("rows", 0, "values", value={"sst2_acc": 92.8, "mnli_m_acc": 84.3, "squad2_f1": 76.3}),
        "values must name every column in order",
    ),
    "an empty row": (put("rows", 0, "values", value=dict.fromkeys(GOOD["rows"][0]["values"])), "no value at all"),
    "an empty column": (
        lambda data: [put("values", "squad2_f1", value=None)(row) for row in data["rows"]] and None,
        "column squad2_f1: no value at all",
    ),
    "a score above 100": (cell(783), "783 is outside 0..100 for f1"),
    "a score below 0": (cell(-0.3), "-0.3 is outside 0..100 for f1"),
    "not a number": (cell(float("nan")), "is not a number"),
    "a word for a score": (cell("high"), "'high' should be a number"),
    "a truth value": (cell(True), "rows.0.values.squad2_f1"),
    "a row that is lacking and is none": (put("lacking", value={"statics": "a"}), r"lacking.statics: no such row"),
    "a list outside a recipe": (cell([1.0]), "is for hyperparameters"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_in_a_table_is_found(defect: str) -> None:
    change, message = DEFECTS[defect]
    data = copy.deepcopy(GOOD)
    change(data)
    with pytest.raises(SpecError, match=message.replace("(", "\\(").replace(".", "\\.")) as error:
        build(PaperTable, data, "table.yaml")
    assert str(error.value).startswith("table.yaml: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "message"), [([], "at least one value"), ("1e-4", "a number in quotes"), ([[1]], "rows.0.values")]
)
def test_a_defect_in_a_recipe_is_found(value: Any, message: str) -> None:
    data = copy.deepcopy(RECIPE)
    put("rows", 0, "values", "learning_rate", value=value)(data)
    with pytest.raises(SpecError, match=message):
        build(PaperTable, data, "table.yaml")


def test_a_recipe_has_settings_only() -> None:
    data = copy.deepcopy(RECIPE)
    data["columns"][0]["metric"] = "count"
    with pytest.raises(SpecError, match="hyperparameters use metric setting, found count"):
        build(PaperTable, data, "table.yaml")


def test_a_difference_may_be_negative_and_a_score_may_not() -> None:
    data = copy.deepcopy(GOOD)
    cell(-0.3)(data)
    data["rows"][0]["group"] = "difference"
    assert build(PaperTable, data, "table.yaml").rows[0].values["squad2_f1"] == -0.3


def found(*changes: Callable[[Any], None], name: str = "roberta-table1") -> list[str]:
    """What check says of a good table and a changed copy of it."""
    data = copy.deepcopy(GOOD)
    for change in changes:
        change(data)
    both = {"other": build(PaperTable, {**GOOD, "id": "other"}, ""), name: build(PaperTable, data, "")}
    return check(both, index(both))


def test_two_good_tables_agree() -> None:
    assert found() == []


def test_an_id_is_the_name_of_its_file() -> None:
    assert found(name="masking") == ["masking.yaml: id: found 'roberta-table1', expected the name of the file"]


def test_a_task_has_one_name_in_all_tables() -> None:
    (message,) = found(put("columns", 0, "task", value="squad_2"))
    assert "no other table knows the task 'squad_2'" in message


def test_a_paper_has_one_description() -> None:
    (message,) = found(put("paper", "authors", value="Y. Liu et al."))
    assert message == "paper roberta is described differently in other.yaml, roberta-table1.yaml"


def test_the_readme_lists_every_table_and_no_other(tables: dict[str, PaperTable]) -> None:
    complete = index(tables)
    fewer = {name: table for name, table in tables.items() if name != "roberta-table1"}
    assert [line[:21] for line in check(tables, index(fewer))] == ["README.md lacks or mi"]
    assert [line[:21] for line in check(fewer, complete)] == ["README.md lists what "]
