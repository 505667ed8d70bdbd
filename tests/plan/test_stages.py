"""A run to its stages: what is new when something changes, and what is shared."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.plan.arms import arms
from paribus.plan.stages import Stage, Stages, TaskTuning, make
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
        ({"corpus.validation": 0.2}, {"corpus", "vocabulary", "pack", "task", "features", *AFTER_PACKING}),
        ({"tokenizer.lowercase": False}, {"vocabulary", "pack", "features", *AFTER_PACKING}),
        ({"packing.train_tokens": 4096}, {"pack", *AFTER_PACKING}),
        ({"objective.rate": 0.3}, AFTER_PACKING),
        ({"encoder.layers": 3}, AFTER_PACKING),
        ({"optimizer.lr": 1e-4}, AFTER_PACKING),
        ({"schedule.warmup": 0.2}, AFTER_PACKING),
        ({"budget.train_tokens": 32768}, AFTER_PACKING),
        ({"precision": "bf16"}, AFTER_PACKING),
        ({"finetuning.epochs": 5}, {"finetune"}),
        ({"finetuning.length": 24}, {"features", "finetune"}),
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


def test_a_grid_has_a_finetuning_a_point_and_chooses_nothing_by_itself(run: Run) -> None:
    grid = {"finetuning.batch_items": [16, 32], "finetuning.epochs": [1, 2], "finetuning.dropout": [0.0, 0.1]}
    many = Stages(changed(run, grid)).at(0)
    points = [stage.spec.point for stage in many if isinstance(stage.spec, TaskTuning)]
    assert len(points) == 2 * 8 and len(set(points)) == 8
    assert keys(Stages(run).at(0)) < keys(many), "the point that was there before is the same work"


@pytest.mark.parametrize("field", ["choose_on", "keep", "patience", "schedule", "pooling", "frozen", "length"])
def test_every_choice_of_a_recipe_is_part_of_a_finetunings_key(run: Run, field: str) -> None:
    values = {"choose_on": "dev", "keep": "best", "patience": 2, "schedule": "cosine", "pooling": "mean"}
    values |= {"frozen": {"layers": "last"}, "length": 31}
    more = {"finetuning.keep": "best"} if field == "patience" else {}
    before, after = changed(run, more), changed(run, {**more, f"finetuning.{field}": values[field]})
    new = [stage for stage in Stages(after).at(0) if stage.key not in keys(Stages(before).at(0))]
    assert {stage.kind for stage in new} == ({"features", "finetune"} if field == "length" else {"finetune"})


def test_windows_are_read_by_span_questions_alone_and_exceptions_by_their_kind(run: Run) -> None:
    for patch in ({"finetuning.windows.stride": 7}, {"finetuning.kinds": {"span-qa": {"epochs": 7}}}):
        new = [stage for stage in Stages(changed(run, patch)).at(0) if stage.key not in keys(Stages(run).at(0))]
        assert {stage.spec.task.name for stage in new} == {"cloze"}


def test_a_task_starts_from_another_ones_finetuning_of_the_same_restart(run: Run) -> None:
    patch = {"finetuning.start_from": {"order": "cloze", "elsewhere": "order"}, "finetuning.seeds": 2}
    stages = Stages(changed(run, patch)).at(0)
    tuned = {(s.spec.task.name, s.spec.restart): s for s in stages if isinstance(s.spec, TaskTuning)}
    for restart in (0, 1):
        first, then = tuned["cloze", restart], tuned["order", restart]
        assert then.inputs["start"] == first.key and "start" not in first.inputs
        assert first.spec.leaves_encoder and not then.spec.leaves_encoder
        assert stages.index(first) < stages.index(then)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (
            {"finetuning.start_from": {"order": "mnli-m"}},
            "finetuning.start_from.order: 'mnli-m' must be another task of the experiment, found cloze",
        ),
        (
            {"finetuning.start_from": {"order": "cloze", "cloze": "order"}},
            "itself starts from",
        ),
        (
            {"finetuning.start_from": {"order": "cloze"}, "finetuning.epochs": [2, 3]},
            "finetuning.start_from.order: 'cloze' needs a grid of one point to start from, found 2",
        ),
        (
            {"finetuning.start_from": {"order": "cloze"}, "finetuning.kinds": {"pair": {"seeds": 3}}},
            "finetuning.start_from.order: 'cloze' needs as many seeds, found 1",
        ),
        (
            {"finetuning.start_from": {"order": "cloze"}, "finetuning.frozen": {"layers": "last"}},
            "finetuning.start_from.order: 'cloze' does not train its encoder (frozen), so",
        ),
        (
            {"finetuning.frozen": {"layers": "concat-last-four"}},
            "finetuning.frozen.layers: 'concat-last-four' needs encoder.layers to be at least 4, found 2",
        ),
        (
            {"finetuning.kinds": {"span-qa": {"length": 384}}},
            "finetuning.length must be at most encoder.position.max_length, found 384 and 32",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_the_run_is_refused(run: Run, patch: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        changed(run, patch)


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
