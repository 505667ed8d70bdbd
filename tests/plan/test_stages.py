"""A run to its stages: what is new when something changes, and what is shared."""

from collections.abc import Callable
from typing import Any

import pytest

from paribus.plan.arms import arms
from paribus.plan.stages import Stage, Stages, make
from paribus.project import Project
from paribus.spec.data import FullSentences
from paribus.spec.load import apply, build
from paribus.spec.run import Run

AFTER_PRETRAINING = {"evaluate", "minimal-pairs", "finetune"}
AFTER_PACKING = {"pretrain", *AFTER_PRETRAINING}


@pytest.fixture
def run(project: Callable[..., Project]) -> Run:
    """The baseline of an experiment with two tasks to fine-tune on and one of minimal pairs."""
    tasks = "question: q\nexpect: e\nbase: bert\nfactors: [rate]\ntasks: [order, cloze, minimal-pairs]\n"
    return arms(project({"experiments/one.yaml": tasks}), "one", "debug")[0].run


def changed(run: Run, patch: dict[str, Any]) -> Run:
    data = run.model_dump()
    apply(data, patch, "patch")
    return build(Run, data, "run")


def keys(stages: list[Stage]) -> set[str]:
    return {stage.key for stage in stages}


@pytest.mark.parametrize(
    ("patch", "renewed"),
    [
        ({"corpus.validation": 0.2}, {"corpus", "vocabulary", "pack", "task", *AFTER_PACKING}),
        ({"tokenizer.lowercase": False}, {"vocabulary", "pack", *AFTER_PACKING}),
        ({"packing.train_tokens": 4096}, {"pack", *AFTER_PACKING}),
        ({"objective.rate": 0.3}, AFTER_PACKING),
        ({"encoder.layers": 3}, AFTER_PACKING),
        ({"optimizer.lr": 1e-4}, AFTER_PACKING),
        ({"schedule.warmup": 0.2}, AFTER_PACKING),
        ({"budget.train_tokens": 32768}, AFTER_PACKING),
        ({"precision": "bf16"}, AFTER_PACKING),
        ({"finetuning.epochs": 5}, {"finetune"}),
        ({"evaluation.held_out.rate": 0.2}, {"evaluate"}),
        ({"evaluation.minimal_pairs.score": "original"}, {"minimal-pairs"}),
        ({"evaluation.minimal_pairs.per_paradigm": 7}, {"minimal-pairs"}),
        ({"packing.length": 24}, {"pack", *AFTER_PACKING}),
    ],
)
def test_a_change_renews_the_stages_that_read_it_and_those_after_them(
    run: Run, patch: dict[str, Any], renewed: set[str]
) -> None:
    before, after = Stages(run).at(0), Stages(changed(run, patch)).at(0)
    assert {stage.kind for stage in after if stage.key not in keys(before)} == renewed


def test_another_seed_renews_training_only(run: Run) -> None:
    maker = Stages(run)
    new = [stage for stage in maker.at(1) if stage.key not in keys(maker.at(0))]
    assert {stage.kind for stage in new} == AFTER_PACKING
    assert keys(Stages(changed(run, {"seed": 1})).at(0)) == keys(maker.at(0))


def test_the_order_of_rates_and_tasks_renews_nothing(run: Run) -> None:
    two = changed(run, {"finetuning.learning_rates": [1e-3, 3e-3]})
    data = two.model_dump()
    data["evaluation"]["tasks"] = data["evaluation"]["tasks"][::-1]
    data["finetuning"]["learning_rates"] = [3e-3, 1e-3]
    assert keys(Stages(build(Run, data, "run")).at(0)) == keys(Stages(two).at(0))


def test_a_name_renews_nothing(run: Run) -> None:
    data = run.model_dump()
    data["evaluation"]["tasks"][0]["name"] = "another"
    assert keys(Stages(build(Run, data, "run")).at(0)) == keys(Stages(run).at(0))


def test_there_is_a_finetuning_a_task_a_rate_and_a_restart(run: Run) -> None:
    many = changed(run, {"finetuning.learning_rates": [1e-3, 2e-3, 3e-3], "finetuning.seeds": 2})
    assert sum(stage.kind == "finetune" for stage in Stages(many).at(0)) == 2 * 3 * 2
    assert keys(Stages(run).at(0)) < keys(Stages(many).at(0))


def test_inputs_come_first_and_keys_are_distinct(run: Run) -> None:
    seen: set[str] = set()
    for stage in Stages(run).at(0):
        assert set(stage.inputs.values()) <= seen and stage.key not in seen
        assert stage.key.startswith(stage.kind + "-")
        seen.add(stage.key)


def test_what_fed_a_stage_and_in_which_role_is_part_of_its_key() -> None:
    spec = FullSentences(length=32)
    made = [
        make("pack", spec, {"corpus": "a", "vocabulary": "b"}),
        make("pack", spec, {"corpus": "b", "vocabulary": "a"}),
        make("pack", spec, {"corpus": "a"}),
        make("pack", spec, {"corpus": "a"}, seed=0),
        make("corpus", spec, {"corpus": "a"}),
    ]
    assert len(keys(made)) == 5


def test_a_raised_version_renews_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    from paribus.plan import stages

    before = make("pack", FullSentences(length=32), {})
    monkeypatch.setitem(stages.VERSIONS, "pack", stages.VERSIONS["pack"] + 1)  # type: ignore[misc]
    assert make("pack", FullSentences(length=32), {}).key != before.key
