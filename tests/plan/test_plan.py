"""The plan of an experiment."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import SpecError
from paribus.plan.plan import Plan, flatten, plan, why
from paribus.plan.stages import VERSIONS, Stage
from paribus.project import Project
from paribus.spec.base import digest

Open = Callable[..., Project]


def record(stage: Stage, **changes: object) -> dict[str, Any]:
    """What stage.json says of a finished stage, as far as `why` reads it."""
    found = {
        "key": stage.key,
        "kind": stage.kind,
        "version": VERSIONS[stage.kind],
        "spec": stage.spec.model_dump(mode="json"),
        "seed": stage.seed,
        "inputs": dict(stage.inputs),
    }
    return {**found, **changes}


def test_runs_come_seed_by_seed_each_arm_in_turn(project: Open) -> None:
    found = plan(project(), "one", "debug")
    assert found.name == "one@debug" and found.baseline.label == "15"
    assert [(run.seed, run.arm.label) for run in found.runs] == [(s, a) for s in range(3) for a in ("15", "30", "40")]
    assert len({run.key for run in found.runs}) == 9


def test_more_seeds_add_runs_and_keep_those_there_were(project: Open) -> None:
    few, many = (plan(project(), "one", "debug", seeds) for seeds in (1, 2))
    assert [run.key for run in few.runs] == [run.key for run in many.runs[:3]]


def test_data_and_tasks_are_made_once_for_all_arms_and_seeds(project: Open) -> None:
    found = list(plan(project(), "one", "debug").stages())
    counts = Counter(stage.kind for stage in found)
    assert counts == {
        "corpus": 1, "vocabulary": 1, "pack": 1, "task": 2, "features": 2,
        "pretrain": 9, "evaluate": 9, "finetune": 18,
    }  # fmt: skip
    seen: set[str] = set()
    for stage in found:
        assert set(stage.inputs.values()) <= seen
        seen.add(stage.key)


def test_two_experiments_share_the_arms_they_have_in_common(project: Open) -> None:
    opened = project()
    one, two = ({stage.key for stage in plan(opened, name, "debug").stages()} for name in ("full", "two"))
    pretrained = {key for key in one & two if key.startswith("pretrain")}
    assert len(pretrained) == 4  # the baseline and three departures, at seed 0


def test_arms_that_are_the_same_run_are_refused(project: Open) -> None:
    files = {
        "ablations/rate.yaml": "{source: s, base: a, levels: {a: {objective.rate: 0.15}, b: {objective.rate: 0.15}}}"
    }
    with pytest.raises(SpecError, match="arms 'a' and 'b' resolve to the same run"):
        plan(project(files), "one", "debug")


def test_why_says_what_sets_a_stage_apart_from_the_nearest_finished_one(project: Open) -> None:
    found = plan(project(), "one", "debug", 2)
    stages = {(run.arm.label, run.seed): next(s for s in run.stages if s.kind == "pretrain") for run in found.runs}
    finished = [record(stages["15", 0]), record(stages["40", 1]), record(found.runs[0].stages[0])]
    assert why(stages["30", 0], finished) == [
        f"nearest finished stage: {stages['15', 0].key}", "objective.rate: 0.15 -> 0.3"
    ]  # fmt: skip
    assert why(stages["30", 1], finished)[1:] == ["objective.rate: 0.4 -> 0.3"]
    assert why(stages["15", 1], [record(stages["15", 0])])[1:] == ["seed: 0 -> 1"]
    assert why(stages["15", 0], [record(stages["15", 0], key="pretrain-1", version=0)])[1:] == [
        f"version of the pretrain code: 0 -> {VERSIONS['pretrain']}"
    ]
    fed = {**stages["15", 0].inputs, "pack": "pack-other"}
    assert why(stages["15", 0], [record(stages["15", 0], key="pretrain-1", inputs=fed)])[1:] == [
        f"input pack: pack-other -> {stages['15', 0].inputs['pack']}"
    ]
    assert why(stages["15", 0], [record(stages["15", 0])]) == ["no other pretrain is finished yet"]
    assert why(stages["15", 0], finished)[1:] == why(stages["15", 0], finished[1:])[1:] != []


def test_overrides_have_one_label_in_every_order_that_means_the_same(project: Open) -> None:
    kind, field = "encoder.position.kind", "encoder.position.max_length"

    def found(*paths: str) -> Plan:
        said = {kind: "absolute", field: 64, "optimizer.lr": 1, "budget.train_tokens": 8192}
        return plan(project(), "one", "debug", 1, {path: said[path] for path in paths})

    both, other = found("optimizer.lr", kind, field), found(kind, "optimizer.lr", field)
    turned = found(field, kind, "optimizer.lr")
    assert both.label == other.label != turned.label
    assert [run.key for run in both.runs] == [run.key for run in other.runs]
    assert found("optimizer.lr", "budget.train_tokens").label == found("budget.train_tokens", "optimizer.lr").label
    assert found("optimizer.lr").label == "one@debug+" + digest('{"optimizer.lr": 1}')[:6]  # as tables are called


SCALARS = st.none() | st.integers() | st.text(max_size=3)
KEYS = st.text("abc", min_size=1, max_size=3)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)))
def test_flattening_keeps_every_scalar(data: Any) -> None:
    def scalars(value: Any) -> list[Any]:
        if isinstance(value, dict | list):
            return [s for inner in (value.values() if isinstance(value, dict) else value) for s in scalars(inner)]
        return [value]

    assert sorted(map(repr, flatten(data).values())) == sorted(map(repr, scalars(data)))


def test_flattened_paths_are_dotted() -> None:
    assert flatten({"a": {"b": [1, {"c": 2}]}, "d": 3}) == {"a.b.0": 1, "a.b.1.c": 2, "d": 3}


REPRODUCES = "{question: q, expect: e, base: bert, factors: [rate], seeds: 1, reproduces: {roberta-table1: %s}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (REPRODUCES % '{"31": static}', r"one\.yaml: reproduces\.roberta-table1: no arm '31'; there is 15, 30, 40"),
        (REPRODUCES % '{"30": statics}', r"table1\.30: row 'statics' is not in the table \(did you mean static\?\)"),
        (REPRODUCES % '{"30": {default: static, smal: null}}', r"table1\.30: no scale is called 'smal' \(did you mean"),
        (REPRODUCES % '{"30": static, "40": static}', r"table1: arms '30' and '40' both take the row 'static'"),
        (
            REPRODUCES.replace("roberta-table1", "bert-abstract") % '{"30": improvement}',
            r"bert-abstract\.30: row 'improvement' is a difference of others; there is bert",
        ),
        (REPRODUCES.replace("table1", "table") % "{}", r"reproduces: no table is called 'roberta-table'"),
    ],
)
def test_rows_of_a_paper_that_do_not_exist_are_refused(
    project: Callable[..., Project], text: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        plan(project({"experiments/one.yaml": text}), "one", "debug")


# --- what verdicts ask for -------------------------------------------------------------------------------------------

ONE = "question: q, expect: e, base: bert, factors: [rate], seeds: 3, tasks: [order, cloze]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("sesoi: {mlm.los: 0.1}", r"one.yaml: sesoi.mlm.los: no such column or unit \(did you mean mlm.loss"),
        ("sesoi: {mlm.loss: 0}", r"one.yaml: sesoi.mlm.loss: .*greater than 0"),
        (
            "claims: [{arm: '30', metric: order.f1, direction: better}]",
            r"one.yaml: claims.0.metric: no column 'order.f1'",
        ),
        (
            "claims: [{arm: '15', metric: mlm.loss, direction: better}]",
            r"claims.0.arm: no arm '15' beside the baseline",
        ),
        ("claims: [{arm: '30', metric: mlm.loss, direction: equal}]", "expected `tolerance` with direction equal"),
        ("claims: [{arm: '30', metric: mlm.loss, direction: up}]", "claims.0.direction"),
    ],
)
def test_what_is_asked_of_no_column_or_arm_is_refused(project: Open, fields: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        plan(project({"experiments/one.yaml": f"{{{ONE}, {fields}}}"}), "one", "debug")


def test_effects_of_interest_and_claims_change_no_run(project: Open) -> None:
    before = plan(project(), "one", "debug")
    more = "sesoi: {nats: 0.1, points: 1}, claims: [{arm: '30', metric: mlm.loss, direction: equal, tolerance: 0.1}]"
    after = plan(project({"experiments/one.yaml": f"{{{ONE}, {more}}}"}), "one", "debug")
    assert [run.key for run in after.runs] == [run.key for run in before.runs]


# --- an arm that repeats another -------------------------------------------------------------------------------------

REPEAT = "{source: test, base: a, levels: {a: {seed_offset: 0}, b: {seed_offset: %d}}}"
TWICE = "{question: q, expect: e, base: bert, factors: [again], seeds: 3}"


def test_an_arm_at_other_seeds_is_the_same_arm_at_those_seeds(project: Open) -> None:
    opened = project({"ablations/again.yaml": REPEAT % 10, "experiments/twice.yaml": TWICE})
    far = {(run.arm.label, run.seed): run.key for run in plan(opened, "twice", "debug", seeds=5).runs}
    opened = project({"ablations/again.yaml": REPEAT % 3})
    near = {(run.arm.label, run.seed): run.key for run in plan(opened, "twice", "debug", seeds=3).runs}
    assert len(set(far.values())) == 10
    assert far["a", 3] == near["b", 0] and far["a", 4] == near["b", 1]


def test_arms_whose_seeds_overlap_are_refused(project: Open) -> None:
    opened = project({"ablations/again.yaml": REPEAT % 2, "experiments/twice.yaml": TWICE})
    with pytest.raises(SpecError, match="arms share runs: their seed_offset must lie at least 3 apart"):
        plan(opened, "twice", "debug")
