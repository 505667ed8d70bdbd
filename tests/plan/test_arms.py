"""base x scale x factors to arms."""

import re
from collections.abc import Callable

import pytest

from paribus.errors import DataError, SpecError
from paribus.plan.arms import arms
from paribus.plan.plan import flatten
from paribus.project import Project

Open = Callable[..., Project]


def differences(one: object, other: object) -> set[str]:
    a, b = (flatten(run.model_dump()) for run in (one, other))  # type: ignore[attr-defined]
    return {path for path in a.keys() | b.keys() if a.get(path) != b.get(path)}


def test_one_factor_gives_an_arm_a_level_called_by_its_name(project: Open) -> None:
    found = arms(project(), "one", "debug")
    assert [arm.label for arm in found] == ["15", "30", "40"]
    assert [arm.run.objective.rate for arm in found] == [0.15, 0.3, 0.4]
    assert [arm.baseline for arm in found] == [True, False, False]


def test_an_arm_differs_from_the_baseline_in_its_level_and_in_nothing_else(project: Open) -> None:
    baseline, thirty, _ = arms(project(), "one", "debug")
    assert differences(baseline.run, thirty.run) == {"objective.rate"}


def test_two_factors_one_at_a_time_are_the_baseline_and_each_departure(project: Open) -> None:
    found = arms(project(), "two", "debug")
    assert [arm.label for arm in found] == ["baseline", "rate=30", "rate=40", "place=alibi"]
    assert found[3].levels == {"rate": "15", "place": "alibi"}


def test_a_full_design_is_every_combination_the_baseline_first(project: Open) -> None:
    found = arms(project(), "full", "debug")
    assert len(found) == len({arm.label for arm in found}) == 6
    assert found[0].levels == {"rate": "15", "place": "absolute"} and found[0].baseline
    assert not any(arm.baseline for arm in found[1:])


def test_levels_and_baseline_are_chosen_by_the_experiment(project: Open) -> None:
    files = {
        "experiments/some.yaml": (
            "{question: q, expect: e, base: bert, factors: [rate], "
            'levels: {rate: ["15", "40"]}, baseline: {rate: "40"}}'
        )
    }
    found = arms(project(files), "some", "debug")
    assert [arm.label for arm in found] == ["40", "15"]
    assert [arm.label for arm in found if arm.baseline] == ["40"]


BASES = "question: q, expect: e, seeds: 2, base: [bert, electra], base_at: {debug: [bert-relative, electra-relative]}"


def test_several_bases_are_an_arm_each_called_the_same_at_every_scale(project: Open) -> None:
    opened = project({"experiments/some.yaml": f"{{{BASES}, baseline: {{base: electra}}}}"})
    found = {scale: arms(opened, "some", scale, {"optimizer.lr": 0.5}) for scale in ("debug", "base")}
    for of_scale in found.values():
        assert [(arm.label, arm.baseline, arm.run.optimizer.lr) for arm in of_scale] == [
            ("electra", True, 0.5),
            ("bert", False, 0.5),
        ]
    assert [arm.run.encoder.position.kind for arm in found["debug"]] == ["relative-bias"] * 2
    assert [arm.run.encoder.position.kind for arm in found["base"]] == ["absolute"] * 2
    assert [arm.run.objective.kind for arm in found["base"]] == ["rtd", "mlm"]


def test_bases_and_factors_are_crossed_as_factors_are(project: Open) -> None:
    found = arms(project({"experiments/some.yaml": f"{{{BASES}, factors: [rate]}}"}), "some", "debug")
    assert [arm.label for arm in found] == ["baseline", "base=electra", "rate=30", "rate=40"]
    assert [arm.run.objective.kind for arm in found] == ["mlm", "rtd", "mlm", "mlm"]


def test_a_protocol_may_be_for_single_scales(project: Open) -> None:
    opened = project({"experiments/some.yaml": f"{{{BASES}, tasks: [order], protocol: {{base: cramming}}}}"})
    assert {arm.run.finetuning.schedule for arm in arms(opened, "some", "base")} == {"cosine"}
    assert {arm.run.finetuning.schedule for arm in arms(opened, "some", "debug")} == {"linear"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("base: bert", "factors: found none; expected at least one, or several bases"),
        ("base: [bert, electra], base_at: {tiny: bert}", r"base_at.tiny: expected as many as `base` has \(2\), found"),
        ("base: [bert, bert]", "base: a base is named twice: bert, bert"),
        ("base: [bert, electrum]", "no base is called 'electrum'"),
        ("base: [bert, electra], levels: {base: [albert]}", "levels.base: no level 'albert'"),
        ("base: bert, factors: [rate], protocol: {debgu: cramming}", "protocol: no scale is called 'debgu'"),
    ],
)
def test_bases_that_cannot_be_arms_are_refused(project: Open, fields: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        arms(project({"experiments/some.yaml": f"{{question: q, expect: e, {fields}}}"}), "some", "debug")


def test_scale_then_experiment_then_override_have_the_last_word(project: Open) -> None:
    files = {
        "experiments/set.yaml": (
            "{question: q, expect: e, base: bert, factors: [rate], set: {optimizer.lr: 0.5, optimizer.clip: 0.5}}"
        )
    }
    opened = project(files)
    run = arms(opened, "set", "debug", {"optimizer.clip": 0.25})[1].run
    assert (run.packing.length, run.optimizer.lr, run.optimizer.clip) == (32, 0.5, 0.25)
    assert run.encoder.dropout == opened.base("bert").encoder.dropout


def test_a_base_of_another_is_that_one_but_for_what_it_sets(project: Open) -> None:
    files = {
        "experiments/bases/pre.yaml": "{source: s, of: bert, set: {encoder.norm.kind: pre, optimizer.lr: {times: 2}}}"
    }
    opened = project(files)
    bert, pre = opened.base("bert"), opened.base("pre")
    assert differences(bert, pre) == {"encoder.norm.kind", "optimizer.lr"}
    assert pre.optimizer.lr == 2 * bert.optimizer.lr


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("of: brt", "pre.yaml: of: no base is called 'brt' (did you mean bert?)"),
        ("of: pre", "pre.yaml: of: got 'pre', expected a base that is written out (`run`)"),
        (
            "of: bert, set: {encoder.widht: 8}",
            "pre.yaml: set: encoder.widht: no such key in encoder (did you mean width?)",
        ),
        ("of: bert, run: {seed: 1}", "pre.yaml: expected either `run`, or `of` with `set`"),
        ("set: {encoder.width: 8}", "pre.yaml: expected either `run`, or `of` with `set`"),
    ],
)
def test_a_base_of_nothing_that_is_written_out_is_refused(project: Open, text: str, error: str) -> None:
    with pytest.raises(SpecError, match=re.escape(error)):
        project({"experiments/bases/pre.yaml": f"{{source: s, {text}}}"}).base("pre")


def test_settings_for_a_scale_come_after_those_for_all_and_its_name_must_be_one(project: Open) -> None:
    text = """{question: q, expect: e, base: bert, factors: [rate],
 set: {optimizer.lr: 0.5}, set_at: {debug: {optimizer.lr: {times: 0.1}, optimizer.clip: 0.5}}}"""
    opened = project({"experiments/set.yaml": text, "experiments/typo.yaml": text.replace("debug:", "debugg:")})
    here, elsewhere = (arms(opened, "set", scale)[0].run.optimizer for scale in ("debug", "tiny"))
    assert (here.lr, here.clip, elsewhere.lr, elsewhere.clip) == (0.05, 0.5, 0.5, 1.0)
    with pytest.raises(SpecError, match=r"typo.yaml: set_at: no scale is called 'debugg' \(did you mean debug\?\)"):
        arms(opened, "typo", "debug")


def test_what_levels_multiply_can_be_set_and_is_multiplied(project: Open) -> None:
    opened = project({"experiments/sizes.yaml": "{question: q, expect: e, base: bert, factors: [batch-size]}"})
    found = arms(opened, "sizes", "debug", {"budget.batch_tokens": 512})
    assert [arm.run.budget.batch_tokens for arm in found] == [512, 4096, 16384]


def test_two_factors_that_set_one_place_are_refused(project: Open) -> None:
    files = {
        "ablations/reach.yaml": """
source: test
base: long
levels: {long: {encoder.position.max_length: 64}, short: {encoder.position.max_length: 32}}
""",
        "experiments/nested.yaml": """
{question: q, expect: e, base: bert, factors: [place, reach], levels: {place: [absolute], reach: [long, short]}}
""",
    }
    with pytest.raises(SpecError, match="factors place and reach both set"):
        arms(project(files), "nested", "debug")


def test_overrides_keep_their_values_when_a_later_one_sets_something_inside_them(project: Open) -> None:
    files = {
        "experiments/plain.yaml": "{question: q, expect: e, base: bert, factors: [place], levels: {place: [absolute]}}"
    }
    overrides = {"budget": {"train_tokens": 4096, "batch_tokens": 1024}, "budget.batch_tokens": 2048}
    found = arms(project(files), "plain", "debug", overrides)
    assert found[0].run.budget.batch_tokens == 2048
    assert overrides["budget"] == {"train_tokens": 4096, "batch_tokens": 1024}


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("factors: [rote]", r"one.yaml: no factor is called 'rote' \(did you mean rate\?\)"),
        ('factors: [rate], levels: {rate: ["15", "31"]}', r"one.yaml: levels.rate: no level '31'; there is 15, 30, 40"),
        ('factors: [rate], levels: {rate: ["15", "15"]}', "one.yaml: levels.rate: a level is named twice: 15, 15"),
        (
            'factors: [rate], levels: {rate: ["30", "40"]}',
            "one.yaml: baseline.rate: '15' is not among the levels that run",
        ),
        ("factors: [rate], levels: {place: [alibi]}", "one.yaml: levels.place: not a factor of this experiment"),
        ("factors: [rate], baseline: {place: alibi}", "one.yaml: baseline.place: not a factor of this experiment"),
        ("factors: [rate], set: {optimizer.lrr: 1}", r"one.yaml: set: optimizer.lrr: no such key for kind 'adamw' in"),
        (
            "factors: [rate], set: {objective.rate: 0.2}",
            "cannot set objective.rate: the factor rate varies objective.rate",
        ),
        (
            "factors: [rate], set: {objective: {kind: mlm}}",
            "cannot set objective: the factor rate varies objective.rate",
        ),
        ("factors: [rate], tasks: [ordre]", r"one.yaml: no task is called 'ordre' \(did you mean order\?\)"),
        ("factors: [rate], set: {optimizer.lr: -1}", r"one.yaml: set \(scale debug, arm 15\): optimizer.lr: found -1"),
    ],
)
def test_a_mistake_in_an_experiment_names_file_and_key(project: Open, experiment: str, expected: str) -> None:
    files = {"experiments/one.yaml": f"{{question: q, expect: e, base: bert, {experiment}}}"}
    with pytest.raises(SpecError, match=expected):
        arms(project(files), "one", "debug")


def test_an_override_of_what_a_factor_varies_is_refused(project: Open) -> None:
    with pytest.raises(SpecError, match="cannot set encoder.position.max_length: the factor place varies"):
        arms(project(), "two", "debug", {"encoder.position.max_length": 64})


PROTOCOL = "{source: a paper, finetuning: {learning_rates: [7e-5], length: 16, seeds: 3}}"


def test_a_protocol_replaces_the_recipe_of_base_and_scale_and_the_experiment_may_set_more(
    project: Callable[..., Project],
) -> None:
    files = {
        "experiments/protocols/mine.yaml": PROTOCOL,
        "experiments/one.yaml": "{question: q, expect: e, base: bert, factors: [rate], tasks: [order], protocol: mine,"
        " set: {finetuning.seeds: 2}}",
    }
    recipe = arms(project(files), "one", "debug")[0].run.finetuning
    assert (recipe.learning_rates, recipe.length, recipe.seeds) == ((7e-5,), 16, 2)
    assert (recipe.epochs, recipe.train_items) == ((3,), None), "not the scale's"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"one": "protocol: yours"}, "one.yaml: protocol: no protocol is called 'yours'"),
        (
            {"protocols/mine": "{source: s, finetuning: {epoch: 3}}", "one": "protocol: mine"},
            "mine.yaml: finetuning: epoch: no such key (did you mean epochs?)",
        ),
        (
            {"one": "average: glue-bert"},
            "one.yaml: average: 'glue-bert' needs cola.mcc, which no task of `tasks` measures",
        ),
    ],
)
def test_a_protocol_or_an_average_that_cannot_be_is_refused(
    project: Callable[..., Project], files: dict[str, str], message: str
) -> None:
    one = "{question: q, expect: e, base: bert, factors: [rate], tasks: [order], " + files.pop("one") + "}"
    made = {f"experiments/{name}.yaml": text for name, text in files.items()}
    with pytest.raises(SpecError, match=re.escape(message)):
        arms(project({**made, "experiments/one.yaml": one}), "one", "debug")


SIZES = """
source: test
base: a
levels:
  a: {}
  b: {encoder.width: 64, optimizer.lr: LR}
"""


@pytest.mark.parametrize(
    ("lr", "overrides", "message"),
    [
        ("fast", {}, 'sizes.yaml: levels.b (scale debug, arm b): optimizer.lr: found "fast", but'),
        ("{time: 3}", {}, 'sizes.yaml: levels.b: optimizer.lr: found {"time": 3}, expected a number, or {times: k}'),
        ("1", {"optimizer.clip": "x"}, '--set (scale debug, arm a): optimizer.clip: found "x", but'),
        ("1", {"encoder.position.kind": "absolut"}, '--set (scale debug, arm a): encoder.position.kind: found "abso'),
        ("1", {"encoder.heads": 7}, "--set (scale debug, arm a): encoder: width"),
        ("1", {"encoder.width": 65}, "--set: cannot set encoder.width: the factor sizes varies encoder.width"),
        ("fast", {"optimizer.clip": 1}, "sizes.yaml: levels.b (scale debug, arm b): optimizer.lr"),
    ],
)
def test_an_error_in_a_value_names_the_level_or_override_that_brought_it(
    project: Open, lr: str, overrides: dict[str, object], message: str
) -> None:
    files = {
        "ablations/sizes.yaml": SIZES.replace("LR", lr),
        "experiments/one.yaml": "{question: q, expect: e, base: bert, factors: [sizes]}",
    }
    with pytest.raises(SpecError, match=re.escape(message)):
        arms(project(files), "one", "debug", overrides)


def test_of_two_mistakes_the_one_that_is_told_has_its_own_place_named(project: Open) -> None:
    files = {
        "ablations/sizes.yaml": SIZES.replace("LR", "fast"),
        "experiments/one.yaml": """
{question: q, expect: e, base: bert, factors: [sizes], set_at: {debug: {encoder.layers: two}}}
""",
    }
    with pytest.raises(SpecError, match=r"one.yaml: set_at.debug \(scale debug, arm a\): encoder.layers"):
        arms(project(files), "one", "debug")


def test_a_factor_whose_base_is_no_level_of_it_is_named(project: Open) -> None:
    files = {
        "ablations/sizes.yaml": SIZES.replace("LR", "1").replace("base: a", "base: c"),
        "experiments/one.yaml": "{question: q, expect: e, base: bert, factors: [sizes]}",
        "experiments/own.yaml": "{question: q, expect: e, base: bert, factors: [sizes], baseline: {sizes: b}}",
    }
    with pytest.raises(SpecError, match="ablations/sizes.yaml: base: no level 'c'; there is a, b"):
        arms(project(files), "one", "debug")
    assert arms(project(files), "own", "debug")[0].label == "b"


def test_a_file_that_is_missing_is_told_with_the_file_that_asks_for_it(project: Open) -> None:
    corpus = "{question: q, expect: e, base: bert, factors: [rate], set: {corpus: {kind: text, paths: [mine.txt]}}}"
    data = "{kind: folder, path: p, train: t, dev: d}"
    task = f"{{kind: sentence, source: s, labels: [a, b], metrics: [mcc], data: {data}}}"
    files = {
        "experiments/one.yaml": corpus,
        "experiments/two.yaml": "{question: q, expect: e, base: bert, factors: [rate], tasks: [own]}",
        "tasks/own.yaml": task,
    }
    opened = project(files)
    with pytest.raises(DataError, match=r"one.yaml: set \(.*\): corpus.paths: no file matches 'mine.txt'"):
        arms(opened, "one", "debug")
    with pytest.raises(DataError, match=r"two.yaml: tasks \(.*\): task own \(.*tasks/own.yaml\): .* has no t, "):
        arms(opened, "two", "debug")
