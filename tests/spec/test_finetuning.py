"""Recipes of fine-tuning: grids, exceptions of kinds and tasks, and what a protocol may say."""

from pathlib import Path
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.project import find
from paribus.spec.base import canonical
from paribus.spec.finetuning import FineTuning, Point
from paribus.spec.load import build
from paribus.spec.task import Task

PROJECT = find(Path(__file__).parents[2])


def made(**fields: Any) -> FineTuning:
    return build(FineTuning, fields, "r.yaml")


def task(kind: str, name: str, metric: str, **fields: Any) -> Task:
    data = {"kind": "built", "builder": "order", "train": 8, "dev": 8}
    return build(Task, {"kind": kind, "name": name, "source": "s", "data": data, "metrics": [metric], **fields}, "t")


SQUAD2 = task("span-qa", "squad2", "em")
COLA = task("sentence", "cola", "mcc")


def test_the_grid_is_the_product_of_what_has_several_values() -> None:
    assert made().points == [Point(5e-5, 32, 3, 0.1, 0.1)]
    several = made(learning_rates=[1e-5, 2e-5], batch_items=[16, 32], epochs=4, warmup=[0.06], dropout=[0, 0.3])
    assert len(set(several.points)) == 8 and {point.epochs for point in several.points} == {4}


def test_one_value_and_a_list_of_one_are_the_same_and_read_back() -> None:
    assert made(epochs=3) == made(epochs=[3]) and canonical(made(epochs=3)) == canonical(made(epochs=[3]))
    recipe = made(epochs=3, batch_items=[16, 32])
    assert recipe.model_dump()["epochs"] == 3 and build(FineTuning, recipe.model_dump(), "r") == recipe


def test_exceptions_of_a_task_come_after_those_of_its_kind() -> None:
    recipe = made(
        kinds={"span-qa": {"length": 384, "epochs": 2}}, tasks={"squad2": {"epochs": 5}}, weight_decay=0.5, seeds=2
    )
    found = recipe.of(SQUAD2)
    assert (found.length, found.epochs, found.weight_decay, found.seeds) == (384, (5,), 0.5, 2)
    assert recipe.of(COLA).length == 128 and recipe.of(COLA).epochs == (3,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patience": 2}, "r.yaml: patience: needs keep: best, found last"),
        ({"kinds": {"spans": {}}}, "r.yaml: kinds: no kind of task is called 'spans'; there is minimal-pair, "),
        ({"kinds": {"pair": {"rate": 1}}}, "r.yaml: kinds.pair.rate: no such key; there is aggregate, batch_items, "),
        (
            {"tasks": {"rte": {"epochs": 0}}},
            "r.yaml: tasks.rte.epochs.0: Input should be greater than or equal to 1, fo",
        ),
        ({"tasks": {"rte": {"patience": 1}}}, "r.yaml: tasks.rte: patience: needs keep: best, found last"),
        ({"epochs": []}, "r.yaml: epochs: found [], but value should have at least 1 item"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        made(**fields)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", list(PROJECT.protocols))
def test_a_shipped_protocol_is_whole_cites_its_source_and_knows_its_tasks(name: str) -> None:
    protocol = PROJECT.protocols.get(name)
    recipe = build(FineTuning, protocol.finetuning, name)
    assert "arXiv" in protocol.source or "BabyLM" in protocol.source
    named = {*recipe.tasks, *recipe.start_from, *recipe.start_from.values()}
    assert named <= set(PROJECT.tasks)
    assert (recipe.choose_on == "dev") == name.endswith("-dev")


def test_robertas_sweep_is_its_table_10() -> None:
    rows = {row.key: row.values for row in PROJECT.tables.get("roberta-hyperparameters-finetuning").rows}
    recipe = build(FineTuning, PROJECT.protocols.get("roberta").finetuning, "roberta")
    race = task("multiple-choice", "race-all", "accuracy")
    for row, found in (("glue", recipe.of(COLA)), ("squad", recipe.of(SQUAD2)), ("race", recipe.of(race))):
        told = rows[row]
        assert set(found.learning_rates) == set(_listed(told["learning_rate"]))
        assert set(found.batch_items) == set(_listed(told["batch_size"]))
        assert (*found.epochs, found.weight_decay, *found.warmup) == (
            told["max_epochs"], told["weight_decay"], told["warmup_ratio"]
        )  # fmt: skip
    glue = recipe.of(COLA)
    assert (len(glue.points), glue.seeds, glue.aggregate, glue.keep) == (6, 5, "median", "best")


def test_berts_protocols_are_those_of_its_table() -> None:
    rows = {row.key: row.values for row in PROJECT.tables.get("bert-hyperparameters-finetuning").rows}
    for row, name in (("paper_glue", "bert"), ("paper_range", "bert-grid")):
        recipe = build(FineTuning, PROJECT.protocols.get(name).finetuning, name).of(COLA)
        assert set(recipe.learning_rates) == set(_listed(rows[row]["learning_rate"]))
        assert set(recipe.batch_items) == set(_listed(rows[row]["batch_size"]))
        assert set(recipe.epochs) == set(_listed(rows[row]["epochs"]))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
