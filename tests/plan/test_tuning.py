"""Tuning as planned: each arm by itself, as many trials for each, runs known when all its trials have ended."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.plan.arms import arms
from paribus.plan.plan import Plan, flatten, plan
from paribus.plan.runs import PlannedRun
from paribus.plan.tuning import PLACES, validation_loss
from paribus.project import Project

Open = Callable[..., Project]

TUNE = "tune: {path: optimizer.lr, low: {times: 0.5}, high: {times: 4}, trials: 5}"
EXPERIMENT = "{{question: q, expect: e, base: bert-relative, factors: [batch-size], seeds: 2, tasks: [order], {}}}"


class Finished:
    """Finished stages, by hand."""

    def __init__(self) -> None:
        self.measured: dict[str, list[dict[str, Any]]] = {}
        self.outcomes: dict[str, str] = {}

    def has(self, key: str) -> bool:
        return key in self.measured

    def rows(self, key: str) -> list[dict[str, Any]]:
        return self.measured[key]

    def record(self, key: str) -> dict[str, Any]:
        return {"outcome": self.outcomes[key], "diverged_step": 1}

    def evaluate(self, run: PlannedRun, loss: float) -> None:
        """End `run` with a validation loss; infinite: it diverged."""
        key = run.stage("evaluate" if math.isfinite(loss) else "pretrain").key
        self.measured[key] = [{"metric": "loss", "split": split, "value": loss} for split in ("test", "validation")]
        self.outcomes[key] = "diverged"


def tuned(project: Project, results: Finished | None = None, **changes: Any) -> Plan:
    return plan(project, "sizes", "debug", results=results, **changes)


@pytest.fixture
def opened(project: Open) -> Project:
    return project({"experiments/sizes.yaml": EXPERIMENT.format(TUNE)})


def test_before_any_result_the_first_trials_are_known_and_no_run_is(opened: Project) -> None:
    found = tuned(opened)
    assert found.runs == [] and [arm.label for arm in found.untuned] == ["bsz-256", "bsz-2k", "bsz-8k"]
    assert [len(tuning.trials) for tuning in found.tunings] == [len(PLACES)] * 3
    assert {run.seed for run in found.trials} == {1000} and all(run.trial for run in found.trials)
    kinds = {stage.kind for run in found.trials for stage in run.stages}
    assert kinds == {"corpus", "vocabulary", "pack", "pretrain", "evaluate"}


def test_a_trial_differs_from_its_arm_in_the_tuned_value_only(opened: Project) -> None:
    found = tuned(opened)
    for tuning in found.tunings:
        assert [trial.run.arm.run.optimizer.lr for trial in tuning.trials] == [trial.value for trial in tuning.trials]
        for trial in tuning.trials:
            before, after = (flatten(run.model_dump()) for run in (tuning.arm.run, trial.run.arm.run))
            differing = {path for path, value in after.items() if before[path] != value}
            assert differing <= {"optimizer.lr"}
            assert all(path.startswith("evaluation.tasks") for path in before.keys() - after.keys())


def test_a_relative_range_follows_the_arm(opened: Project) -> None:
    found = tuned(opened)
    assert [(t.tune.low, t.tune.high) for t in found.tunings] == [(0.001, 0.008), (0.00283, 0.0226), (0.00566, 0.0453)]
    assert [trial.value for trial in found.tunings[0].trials] == [0.00283, 0.00168, 0.00476]


def test_a_relative_setting_moves_the_range_of_what_is_tuned(opened: Project) -> None:
    moved = tuned(opened, overrides={"optimizer.lr": {"times": 0.5}}).tunings[0]
    assert (moved.tune.low, moved.tune.high) == (0.0005, 0.004)


def finish_known(found: Plan, results: Finished, loss: Callable[[float], float], arm: int) -> None:
    for trial in found.tunings[arm].trials:
        results.evaluate(trial.run, loss(trial.value))


def test_a_later_trial_waits_for_a_suggestion_fed_by_all_before_it_in_its_own_arm(opened: Project) -> None:
    results = Finished()
    results.evaluate(tuned(opened).tunings[0].trials[0].run, 3.0)
    assert all(tuning.suggestion is None for tuning in tuned(opened, results).tunings)
    finish_known(tuned(opened), results, lambda lr: lr, 0)
    first, second, _ = tuned(opened, results).tunings
    assert second.suggestion is None and first.suggestion and first.done == 3
    assert list(first.suggestion.inputs.values()) == [t.run.stage("evaluate").key for t in first.trials]
    results.measured[first.suggestion.key] = [{"metric": "suggestion", "value": 0.002}]
    assert [t.value for t in tuned(opened, results).tunings[0].trials] == [0.00283, 0.00168, 0.00476, 0.002]


def complete(project: Project, results: Finished, loss: Callable[[float], float], arm: int = 0) -> Plan:
    """Finish all trials of an arm; the suggestions are by hand."""
    while not (tuning := (found := tuned(project, results)).tunings[arm]).best:
        finish_known(found, results, loss, arm)
        if tuning.suggestion:
            results.measured[tuning.suggestion.key] = [{"metric": "suggestion", "value": 0.001 * len(tuning.trials)}]
    return found


def test_the_runs_of_an_arm_are_known_at_its_best_value_when_all_its_trials_have_ended(opened: Project) -> None:
    found = complete(opened, Finished(), lambda lr: abs(lr - 0.0032))
    assert [trial.value for trial in found.tunings[0].trials] == [0.00283, 0.00168, 0.00476, 0.003, 0.004]
    assert [(run.arm.label, run.seed, run.arm.run.optimizer.lr) for run in found.runs] == [
        ("bsz-256", 0, 0.003),
        ("bsz-256", 1, 0.003),
    ]
    assert found.baseline.run.optimizer.lr == 0.003 and found.runs[0].arm is found.baseline
    assert "finetune" in {stage.kind for stage in found.runs[0].stages} and not found.runs[0].trial
    assert [arm.label for arm in found.untuned] == ["bsz-2k", "bsz-8k"]
    assert not found.tunings[0].at_an_end


def test_a_diverged_trial_is_the_worst_and_the_smaller_value_wins_a_tie(opened: Project) -> None:
    tuning = complete(opened, Finished(), lambda lr: math.inf if lr > 0.003 else 1.0).tunings[0]
    assert tuning.best and tuning.best.value == 0.00168 and tuning.at_an_end
    assert sorted(trial.loss for trial in tuning.trials if trial.loss) == [1.0, 1.0, 1.0, math.inf, math.inf]


def test_more_trials_keep_those_that_are_done(project: Open) -> None:
    results = Finished()
    before = complete(project({"experiments/sizes.yaml": EXPERIMENT.format(TUNE)}), results, lambda lr: lr)
    more = project({"experiments/sizes.yaml": EXPERIMENT.format(TUNE.replace("trials: 5", "trials: 7"))})
    after = tuned(more, results).tunings[0]
    assert [t.run.key for t in after.trials] == [t.run.key for t in before.tunings[0].trials]
    assert after.done == 5 and after.best is None and after.suggestion


def test_updates_times_batch_are_the_same_for_every_batch_size_but_for_less_than_a_step(opened: Project) -> None:
    for scale in ("debug", "tiny", "small", "base"):
        budgets = [arm.run.budget for arm in arms(opened, "sizes", scale)]
        assert [b.batch_tokens / budgets[0].batch_tokens for b in budgets] == [1, 8, 32]
        assert all(0 <= b.train_tokens - b.steps * b.batch_tokens < b.batch_tokens for b in budgets)
        assert len({b.train_tokens for b in budgets}) == 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (TUNE.replace("optimizer.lr", "optimizer.rate"), "tune.path: optimizer.rate: no such key for kind 'adamw'"),
        (TUNE.replace("optimizer.lr", "encoder.layers"), "tune.path: found encoder.layers, which is 2; only a number"),
        (TUNE.replace("{times: 4}", "1e-4"), "tune: low must be below high and above 0, found 0.001 and 0.0001"),
        (TUNE.replace("{times: 0.5}", "0"), "tune: low must be below high and above 0, found 0.0 and 0.008"),
        (
            TUNE.replace("optimizer.lr", "optimizer.beta2"),
            r"tune \(arm bsz-256, optimizer.beta2=4\): optimizer.beta2: found 4.0",
        ),
        (TUNE.replace("trials: 5", "trials: 0"), "tune.trials: found 0, but input should be greater than or equal to"),
        (TUNE.replace("trials: 5", "trials: 5, seed: 1"), "tune.seed: found 1, but seeds 0 to 1 are reported"),
        (
            TUNE.replace("optimizer.lr", "finetuning.weight_decay").replace("{times: 0.5}", "0.001"),
            "tune.path: found finetuning.weight_decay; .* which it does not move",
        ),
        (
            TUNE.replace("optimizer.lr", "evaluation.held_out.rate"),
            "tune.path: found evaluation.held_out.rate; .* which it does not move",
        ),
        (TUNE.replace("optimizer.lr", "corpus.test"), "tune.path: found corpus.test; .* of which it makes others"),
        (TUNE + ", set: {optimizer.lr: 0.1}", "cannot set optimizer.lr: tune.path optimizer.lr is chosen for each arm"),
        (
            TUNE.replace("optimizer.lr", "objective.rate") + ", factors: [rate]",
            "tune.path: cannot tune objective.rate: the factor rate varies objective.rate",
        ),
    ],
)
def test_a_tuning_that_cannot_be_is_refused_with_file_and_key(project: Open, changed: str, expected: str) -> None:
    text = EXPERIMENT.format(changed)
    if changed.count("factors"):
        text = text.replace("factors: [batch-size], ", "")
    with pytest.raises(SpecError, match=r"sizes.yaml:? .*" + expected if "arm" in expected else expected):
        tuned(project({"experiments/sizes.yaml": text}))


def test_a_trial_at_a_seed_that_another_arm_reports_by_its_offset_is_refused(project: Open) -> None:
    text = EXPERIMENT.format(TUNE).replace("[batch-size]", "[nothing]")
    with pytest.raises(SpecError, match="sizes.yaml: tune.seed: found 1000; .* at seed 1000, which arm 'b' reports"):
        tuned(project({"experiments/sizes.yaml": text}))


def rows_of(*found: tuple[str, str, str, float]) -> list[dict[str, object]]:
    return [{"task": task, "metric": metric, "split": split, "value": value} for task, metric, split, value in found]


def test_a_run_is_ranked_by_the_validation_loss_of_what_is_fine_tuned() -> None:
    test, accuracy = ("mlm", "loss", "test", 1.0), ("mlm", "accuracy", "validation", 0.5)
    assert validation_loss(rows_of(test, accuracy, ("mlm", "loss", "validation", 4.5))) == 4.5
    generator, discriminator = ("generator", "loss", "validation", 4.0), ("rtd", "loss", "validation", 0.4)
    assert validation_loss(rows_of(generator, discriminator)) == 0.4
