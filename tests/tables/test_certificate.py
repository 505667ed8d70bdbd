"""The certificate: what a factor sets is declared, what moves with it is shown, anything else refuses the verdict."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import ParibusError
from paribus.jobs.runs import find_run, write_run
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage
from paribus.project import Project, find
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables import compare as comparing
from paribus.tables.certificate import Certificate, certificates, percent
from paribus.tables.experiment import experiment_table
from paribus.tables.render import FORMATS, render
from paribus.tables.table import Cell

MADE: Mapping[str, Any] = {
    "paribus": "1.0",
    "code": "paribus 1.0 (code aaaa)",
    "commit": "1" * 40,
    "diff": "",
    "python": "3.12.1",
    "host": "here",
    "packages": {"torch": "2.9.0", "sphinx": "1.0"},
}
Write = Callable[[Mapping[str, str]], None]
Say = Callable[[PlannedRun, Stage], dict[str, Any]]
PLAIN = "{question: q, expect: e, base: bert-relative, seeds: 1, "
OTHER = """
question: A masking experiment that somebody else set up?
expect: nothing
base: bert-relative
factors: [masking]
seeds: {seeds}
tasks: [grammar, casing]
set: {set}
"""


def refusals(plan: Plan, store: Store, allow: Collection[str] = ()) -> dict[str, str]:
    """Arm to why there is no verdict on it; only the arms that are refused one."""
    found = certificates(plan, Finished(store, plan.runs), allow)
    return {arm: certificate.refusal for arm, certificate in found.items() if certificate.refusal}


def finish(
    store: Store,
    plan: Plan,
    measure: Callable[..., Any],
    provenance: Say = lambda run, stage: {},
    more: Say = lambda run, stage: {},
    missing: tuple[str, ...] = (),
) -> None:
    """Finish every run of `plan`; `provenance` and `more` say in what a stage's differs from MADE and from a CPU."""
    for run in plan.known:
        for stage in run.stages:
            work = None if store.has(stage.key) or stage.key in missing else store.claim(stage)
            if work is None:
                continue
            with work:
                for metric, split, value, *task in measure(run, stage):
                    work.row(metric, value, split=split, n=100, **dict(zip(("task",), task, strict=False)))
                digest = store.record_provenance({**MADE, **provenance(run, stage)})
                work.commit(digest, **{"device": "cpu", **more(run, stage)})


@pytest.fixture
def planned(project: Project) -> Plan:
    return plan(project, "masks", "mini")


@pytest.fixture
def write(project: Project) -> Write:
    """Writes files of the project by path and text."""

    def files(texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            path = project.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return files


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting parameters loads torch in a process of its own."""
    monkeypatch.setattr(comparing, "costs", lambda *_: {})


@pytest.fixture
def against(project: Project, store: Store) -> Callable[..., Certificate]:
    """Compares masks:dynamic with the same arm of an experiment that sets something else besides."""

    def compare(settings: str = "{}", seeds: int = 3) -> Certificate:
        path = project.root / "experiments" / "other.yaml"
        path.write_text(OTHER.replace("{set}", settings).replace("{seeds}", str(seeds)))
        names = ("masks@mini:dynamic", "other@mini:static")
        one, other = (comparing.of_arm(project, store, name) for name in names)
        return comparing.compare(one, other, store, set())

    return compare


def undeclared(found: Certificate) -> list[str]:
    return [line.what for line in found.undeclared]


def on(device: str, which: Callable[[Stage], bool]) -> Say:
    """Stages that were computed on another device."""
    return lambda run, stage: {"device": device} if which(stage) else {}


def arm(*labels: str) -> Callable[[PlannedRun, Stage], bool]:
    """Whether a pretraining belongs to one of the arms."""
    return lambda run, stage: run.arm.label in labels and stage.kind == "pretrain"


# --- nothing but the factor ---


def test_where_only_the_factor_differs_all_else_is_equal(planned: Plan, store: Store, measure: Any) -> None:
    finish(store, planned, measure)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert {line.what for line in found.lines if line.status == "declared"} == {
        "objective.masking.duplicates",
        "objective.masking.kind",
        "objective.masking.visits",
    }
    assert (found.mark, found.refusal, refusals(planned, store)) == ("✓", None, {})


def test_before_anything_is_finished_there_is_nothing_to_certify(planned: Plan, store: Store) -> None:
    assert certificates(planned, Finished(store, planned.runs)) == {}


def test_the_same_arm_of_another_experiment_is_equal_in_all_but_the_factor(
    against: Callable[..., Certificate],
) -> None:
    assert undeclared(against()) == []


def test_another_kind_brings_fields_of_its_own_which_follow(project: Project, write: Write, store: Store) -> None:
    write(
        {
            "experiments/formats.yaml": PLAIN + "factors: [input-format], "
            "levels: {input-format: [segment-pair, full-sentences]}, set: {encoder.segments: 2}}"
        }
    )
    one, other = (comparing.of_arm(project, store, f"formats@mini:{a}") for a in ("segment-pair", "full-sentences"))
    found = comparing.compare(one, other, store, set())
    assert {line.what for line in found.lines if line.status == "follows"} >= {"packing.lone", "packing.isolation"}
    assert undeclared(found) == []


def test_arms_of_which_nothing_has_run_are_told_so_and_not_that_all_else_is_equal(
    planned: Plan, project: Project, store: Store, measure: Any
) -> None:
    one, other = (comparing.of_arm(project, store, f"masks@mini:{arm}") for arm in ("dynamic", "static"))
    found = comparing.compare(one, other, store, set())
    assert comparing.table(found).notes[0].startswith("No verdict yet: no run of masks@mini:dynamic or masks@mini:st")
    assert comparing.as_json(found)["unfinished"] == [one.name, other.name]
    finish(store, planned, measure)
    found = comparing.compare(one, other, store, set())
    assert comparing.table(found).notes[0] == "All else is equal: a verdict may be given."


def test_what_moves_with_the_factor_is_shown_and_refuses_nothing(planned: Plan, store: Store, measure: Any) -> None:
    def larger(run: PlannedRun, stage: Stage) -> Any:
        if stage.kind != "pretrain":
            return measure(run, stage)
        return [("parameters", None, 103.0 if run.arm.label == "dynamic" else 100.0), ("tokens", None, 65536.0)]

    finish(store, planned, larger, more=lambda run, stage: {"seconds": 5.0 if run.arm.baseline else 50.0})
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert (found.mark, found.refusal) == ("~ parameters +3.0 %", None)
    status = {line.what: line.status for line in found.lines}
    assert (status["parameters"], status["pretraining, seconds"], status["tokens"]) == ("follows", "shown", "equal")


# --- twelve confounders ---


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ("{optimizer.lr: 2e-3}", "optimizer.lr"),
        ("{budget.train_tokens: 32768}", "budget.train_tokens"),
        ("{tokenizer.kind: bpe}", "tokenizer.kind"),
        ("{packing.length: 64}", "packing.length"),
        ("{encoder.dropout: 0.3}", "encoder.dropout"),
        ("{precision: fp32}", "precision"),
        ("{evaluation.held_out.rate: 0.3}", "evaluation.held_out.rate"),
        ("{finetuning.epochs: [2]}", "finetuning.epochs.0"),
    ],
)
def test_a_setting_that_no_factor_declares_refuses_the_verdict(
    against: Callable[..., Certificate], settings: str, path: str
) -> None:
    found = against(settings)
    assert path in undeclared(found)
    assert found.refusal and path in found.refusal and found.mark.startswith("✗ ")


def test_another_list_of_seeds_refuses_the_verdict(against: Callable[..., Certificate]) -> None:
    found = against(seeds=2)
    assert undeclared(found) == ["seeds"] and "seeds (0, 1, 2 against 0, 1)" in (found.refusal or "")


def test_other_tokens_than_the_budgets_refuse_the_verdict(planned: Plan, store: Store, measure: Any) -> None:
    def fewer(run: PlannedRun, stage: Stage) -> Any:
        tokens = 65536.0 if run.arm.baseline else 60000.0
        return [*measure(run, stage), *([("tokens", None, tokens)] if stage.kind == "pretrain" else [])]

    finish(store, planned, fewer)
    assert "tokens (60,000 against 65,536)" in refusals(planned, store)["dynamic"]


def test_tokens_that_the_factor_sets_are_declared(project: Project, write: Write, store: Store, measure: Any) -> None:
    write(
        {
            "ablations/length.yaml": "{source: a test, base: short, levels: "
            "{short: {budget.train_tokens: 65536}, long: {budget.train_tokens: 131072}}}"
        }
    )
    write({"experiments/longer.yaml": PLAIN + "factors: [length]}"})

    def budgets(run: PlannedRun, stage: Stage) -> Any:
        tokens = float(run.arm.run.budget.train_tokens)
        return [*measure(run, stage), *([("tokens", None, tokens)] if stage.kind == "pretrain" else [])]

    planned = plan(project, "longer", "mini")
    finish(store, planned, budgets)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert found.refusal is None and found.mark == "~ tokens +100 %, masked tokens +100 %"


def test_a_task_whose_items_changed_between_two_runs_refuses_the_verdict(
    project: Project, write: Write, store: Store
) -> None:
    write(
        {
            "tasks/mine.yaml": "{kind: sentence, source: a test, metrics: [accuracy], labels: ['0', '1'], "
            "data: {kind: folder, path: mine, train: train.tsv, dev: dev.tsv, "
            "format: {kind: tsv, columns: {sentence: 0, label: 1}}}}"
        }
    )
    write({"experiments/files.yaml": PLAIN + "factors: [masking], tasks: [mine]}"})
    keys = []
    for label, dev in (("static", "one\t0\n"), ("dynamic", "two\t1\n")):
        write({"data/mine/train.tsv": "a\t0\nb\t1\n", "data/mine/dev.tsv": dev})
        planned = plan(project, "files", "mini")
        run = next(run for run in planned.runs if run.arm.label == label)
        write_run(store, planned.name, run)
        keys.append(run.key)
    one, other = (comparing.of_run(project, store, find_run(store, key)) for key in keys)
    found = comparing.compare(one, other, store, set())
    assert undeclared(found) == ["evaluation.tasks.mine.data.sha256", "evaluation set mine"]


def test_a_task_made_from_another_corpus_is_another_task_even_where_the_corpus_is_the_factor(
    project: Project, write: Write, store: Store, measure: Any
) -> None:
    write({"data/mine.txt": "A text.\n\nAnother.\n"})
    write(
        {
            "ablations/data.yaml": "{source: a test, base: speeches, levels: {speeches: {corpus: {kind: sotu}}, "
            "mine: {corpus: {kind: text, paths: [mine.txt]}}}}"
        }
    )
    write({"experiments/data.yaml": PLAIN + "factors: [data], tasks: [casing]}"})
    planned = plan(project, "data", "mini")
    finish(store, planned, measure)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert undeclared(found) == ["evaluation set casing"]


LIBRARY = {"packages": {"torch": "2.10.0", "sphinx": "1.0"}}
PROGRAM = {"code": "paribus 1.1 (code bbbb)", "commit": "2" * 40}


@pytest.mark.parametrize(
    ("changed", "what", "told"),
    [
        (LIBRARY, "libraries", "libraries (torch 2.10.0 against torch 2.9.0)"),
        ({"python": "3.13.0"}, "libraries", "libraries (python 3.13.0 against python 3.12.1)"),
        (PROGRAM, "code", "code (paribus 1.1 (code bbbb) against paribus 1.0 (code aaaa))"),
        ({"code": None, "commit": "3" * 40, "diff": "-a"}, "code", "333333333 with changes"),
    ],
)
def test_another_program_or_library_refuses_the_verdict_unless_it_is_admitted(
    planned: Plan, store: Store, measure: Any, changed: dict[str, Any], what: str, told: str
) -> None:
    mine = arm("dynamic")
    finish(store, planned, measure, lambda run, stage: changed if mine(run, stage) else {})
    refused = refusals(planned, store)
    assert told in refused["dynamic"] and list(refused) == ["dynamic"]
    assert refusals(planned, store, {what}) == {}
    (found,) = certificates(planned, Finished(store, planned.runs), {what}).values()
    assert next(line.status for line in found.lines if line.what == what) == "shown"


def test_a_card_that_only_one_arm_ran_on_refuses_the_verdict(planned: Plan, store: Store, measure: Any) -> None:
    mine = arm("dynamic")
    finish(store, planned, measure, more=lambda run, stage: {"device": "NVIDIA T4"} if mine(run, stage) else {})
    assert certificates(planned, Finished(store, planned.runs))["dynamic"].mark == "✗ card"
    assert refusals(planned, store, {"card"}) == {}


def test_another_precision_of_products_refuses_the_verdict(planned: Plan, store: Store, measure: Any) -> None:
    mine = arm("dynamic")
    finish(store, planned, measure, more=lambda run, stage: {"matmul": "high" if mine(run, stage) else "highest"})
    assert "fp32 products high" in refusals(planned, store)["dynamic"]


def test_a_card_that_changes_places_by_task_or_by_point_of_a_grid_refuses_the_verdict(
    project: Project, tmp_path: Path, measure: Any
) -> None:
    """All arms ran on both cards, each of their tasks, or of its points, on another one."""
    by = {
        "task": lambda stage: stage.spec.task.name == "grammar",
        "point": lambda stage: stage.spec.point.lr == 1e-3,
    }
    for what, first in by.items():
        store, planned = Store(tmp_path / what), plan(project, "masks", "mini")
        store.prepare()

        def card(run: PlannedRun, stage: Stage, first: Any = first) -> dict[str, Any]:
            swapped = stage.kind == "finetune" and first(stage) == run.arm.baseline
            return {"device": "one card" if swapped else "another"}

        finish(store, planned, measure, more=card)
        assert certificates(planned, Finished(store, planned.known))["dynamic"].mark == "✗ card"


def test_a_grid_that_is_not_finished_is_compared_point_by_point(planned: Plan, store: Store, measure: Any) -> None:
    """Both cards made both arms alike, but one of the arms lacks what one of them made."""

    def first(stage: Stage) -> bool:
        return stage.kind == "finetune" and stage.spec.point.lr == 1e-3

    waiting = [stage.key for run in planned.runs if not run.arm.baseline for stage in run.stages if first(stage)]
    finish(store, planned, measure, more=on("other", first), missing=tuple(waiting))
    found = certificates(planned, Finished(store, planned.known))["dynamic"]
    assert "card" not in undeclared(found)


def test_a_larger_grid_is_compared_as_a_whole(project: Project, write: Write, store: Store, measure: Any) -> None:
    grids = "{a: {finetuning.learning_rates: [1e-3]}, b: {finetuning.learning_rates: [1e-3, 3e-3]}}"
    write({"ablations/grid.yaml": f"{{source: x, base: a, levels: {grids}}}"})
    write({"experiments/grid.yaml": PLAIN + "factors: [grid], tasks: [grammar]}"})
    asked = plan(find(project.root), "grid", "mini")
    finish(store, asked, measure, more=on("other", lambda s: s.kind == "finetune" and s.spec.point.lr > 2e-3))
    assert "card" in undeclared(certificates(asked, Finished(store, asked.known))["b"])


def test_trials_that_another_program_made_refuse_the_verdict(project: Project, store: Store, measure: Any) -> None:
    def changed(run: PlannedRun, stage: Stage) -> dict[str, Any]:
        return {"code": "paribus 1.0 (code bbbb)"} if run.trial and not run.arm.label.startswith("bsz-256") else {}

    for _ in range(2):  # the runs are known when the trials have ended
        planned = plan(project, "sizes", "mini", results=store)
        finish(store, planned, measure, changed)
    planned = plan(project, "sizes", "mini", results=store)
    found = certificates(planned, Finished(store, planned.known))["bsz-2k"]
    assert "code" in undeclared(found) and len(found.programs) == 2


@pytest.mark.parametrize("changed", [{"host": "there"}, {"packages": {"torch": "2.9.0"}}, {"commit": "2" * 40}])
def test_a_host_or_a_package_that_does_not_compute_or_a_commit_of_the_same_program_refuses_nothing(
    planned: Plan, store: Store, measure: Any, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.tables.certificate.required", lambda: frozenset({"torch"}))
    mine = arm("dynamic")
    finish(store, planned, measure, lambda run, stage: changed if mine(run, stage) else {})
    assert refusals(planned, store) == {}


def test_a_program_that_changed_between_seeds_but_not_between_arms_refuses_nothing(
    planned: Plan, store: Store, measure: Any
) -> None:
    finish(store, planned, measure, lambda run, stage: PROGRAM if run.seed and stage.seed is not None else {})
    assert refusals(planned, store) == {}


def test_more_trials_for_one_of_two_tuned_arms_refuse_the_verdict(project: Project, store: Store) -> None:
    text = (project.root / "experiments/sizes.yaml").read_text()
    (project.root / "experiments/more.yaml").write_text(text.replace("trials: 3", "trials: 2"))
    for name in ("sizes", "more"):
        planned = plan(project, name, "mini", results=store)
        finish(store, planned, lambda run, stage: [("loss", "validation", 4.0)] if stage.kind == "evaluate" else [])
    one, other = (comparing.of_arm(project, store, f"{name}@mini:bsz-256") for name in ("sizes", "more"))
    found = comparing.compare(one, other, store, set())
    assert "tuning trials" in undeclared(found) and "tuning trials (3 against 2)" in (found.refusal or "")
    assert "optimizer.lr" not in undeclared(found)


def test_a_tuned_arm_against_one_that_is_not_refuses_the_verdict(project: Project, store: Store) -> None:
    text = (project.root / "experiments/sizes.yaml").read_text()
    (project.root / "experiments/plainer.yaml").write_text("\n".join(text.splitlines()[:-1]))
    one, other = (comparing.of_arm(project, store, f"{name}@mini:bsz-256") for name in ("sizes", "plainer"))
    assert "tuning trials" in undeclared(comparing.compare(one, other, store, set()))


def test_a_seed_that_only_one_arm_lacks_refuses_the_verdict(planned: Plan, store: Store, measure: Any) -> None:
    lost = next(run for run in planned.runs if (run.arm.label, run.seed) == ("dynamic", 1))
    finish(store, planned, measure, missing=(lost.stage("pretrain").key, lost.stage("evaluate").key))
    assert "missing seeds (1 against none)" in refusals(planned, store)["dynamic"]


def test_a_seed_that_both_arms_lack_refuses_nothing(planned: Plan, store: Store, measure: Any) -> None:
    lost = [run.stage("evaluate").key for run in planned.runs if run.seed == 2]
    finish(store, planned, measure, missing=tuple(lost))
    assert refusals(planned, store) == {}


def test_a_seed_that_diverged_in_one_arm_is_missing_there(
    planned: Plan, store: Store, measure: Any, fill: Callable[..., None]
) -> None:
    lost = next(run for run in planned.runs if (run.arm.label, run.seed) == ("dynamic", 0))
    fill(store, planned, diverged=(lost.stage("pretrain").key,))
    assert "missing seeds (0 against none)" in refusals(planned, store)["dynamic"]


# --- by rounding only ---


@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_steps_computed_in_different_ways_refuse_nothing_and_are_told(
    planned: Plan, store: Store, measure: Any, kind: str
) -> None:
    def steps(run: PlannedRun, stage: Stage) -> dict[str, Any]:
        if stage.kind != kind:
            return {}
        return {"compile": "off" if run.arm.baseline else "graphs", "sdpa": "auto" if run.seed else "math"}

    finish(store, planned, measure, more=steps)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert (found.mark, found.refusal) == ("~ steps", None)
    told = "Steps of dynamic and static were computed in different ways (compile graphs against compile off), which"
    for table in (experiment_table(planned, store), comparing.table(found)):
        assert sum(note.startswith(told) for note in table.notes) == 1
    line = next(line for line in found.lines if line.what == "steps")
    assert (line.status, line.one, line.other) == ("shown", {"compile graphs"}, {"compile off"})


def test_a_way_that_one_side_does_not_record_is_not_known_to_differ(planned: Plan, store: Store, measure: Any) -> None:
    def steps(run: PlannedRun, stage: Stage) -> dict[str, Any]:
        told = {"compile": "off"} if stage.kind == "pretrain" else {}
        return told if run.arm.baseline else {**told, "sdpa": "auto"}

    finish(store, planned, measure, more=steps)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert found.rounding is None and "steps" not in found.mark


def test_ways_that_change_places_by_seed_are_told_as_that(planned: Plan, store: Store, measure: Any) -> None:
    def steps(run: PlannedRun, stage: Stage) -> dict[str, Any]:
        return {"compile": "on" if (run.seed + run.arm.baseline) % 2 else "off", "sdpa": "auto"}

    finish(store, planned, measure, more=steps)
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert found.mark == "~ steps" and found.rounding and "(not seed by seed)" in found.rounding


def test_steps_computed_otherwise_at_some_seeds_of_both_arms_are_no_difference(
    planned: Plan, store: Store, measure: Any
) -> None:
    finish(store, planned, measure, more=lambda run, stage: {"sdpa": "flash" if run.seed else "auto"})
    (found,) = certificates(planned, Finished(store, planned.runs)).values()
    assert (found.mark, found.rounding) == ("✓", None)
    assert next(line.one for line in found.lines if line.what == "steps") == {"sdpa auto", "sdpa flash"}


# --- in the table ---


def test_a_table_says_which_arm_is_refused_and_what_was_admitted(planned: Plan, store: Store, measure: Any) -> None:
    mine = arm("dynamic")
    finish(store, planned, measure, lambda run, stage: PROGRAM if mine(run, stage) else {})
    refused, admitted = experiment_table(planned, store), experiment_table(planned, store, allow={"code"})
    marks = [{row.key: row.cells[-1] for row in table.rows if row.arm} for table in (refused, admitted)]
    assert marks == [{"static": None, "dynamic": Cell("✗ code")}, {"static": None, "dynamic": Cell("✓")}]
    assert refused.notes[0].startswith("No verdict: dynamic and static also differ in code")
    assert admitted.notes[0] == "Admitted (--allow code) though the baseline's differ: code of dynamic."
    for table in (refused, admitted):
        assert "Made by 2 programs: paribus 1.0 (code aaaa), paribus 1.1 (code bbbb)." in table.notes
    # Whether an arm without a verdict is the best is not known, so no other is called so.
    bold = [any(cell and cell.best for row in table.rows for cell in row.cells) for table in (refused, admitted)]
    assert bold == [False, True]
    assert r"$\surd$" in render(admitted, "tex") and r"$\times$ code" in render(refused, "tex")


# --- names and texts ---


@pytest.mark.parametrize("name", ["masks", "masks@mini:fresh", "mask@mini:static", "masks@min:static"])
def test_a_name_that_is_nobodys_is_an_error_that_says_what_there_is(project: Project, store: Store, name: str) -> None:
    with pytest.raises(ParibusError, match=r"expected EXPERIMENT:ARM|no arm is called|is called 'mask?|'min'"):
        comparing.of_arm(project, store, name)


def test_a_label_alone_is_an_arm_of_the_experiment_beside_it(project: Project, store: Store) -> None:
    found = comparing.of_arm(project, store, "static", "mini", beside="masks:dynamic")
    assert (found.name, sorted(found.runs)) == ("masks@mini:static", [0, 1, 2])


def test_a_certificate_is_a_table_in_every_format(against: Callable[..., Certificate]) -> None:
    found = against("{optimizer.lr: 2e-3}")
    for format in FORMATS:
        text = render(comparing.table(found), format)
        assert "optimizer.lr" in text and "UNDECLARED" in text
    told = comparing.as_json(found)
    assert {"group": "Settings", "what": "optimizer.lr", "one": 1e-4, "other": 2e-3, "status": "UNDECLARED"} in (
        told["lines"]
    )


@pytest.mark.parametrize(
    ("change", "text"), [(0.031, "+3.1 %"), (-0.5, "-50 %"), (0.3333, "+33 %"), (7.0, "x 8"), (-0.000001, "-0.0 %")]
)
def test_a_change_is_told_in_per_cent_or_as_a_factor(change: float, text: str) -> None:
    assert percent(change) == text


def test_a_lost_provenance_file_still_tells_one_from_another(planned: Plan, store: Store, measure: Any) -> None:
    mine = arm("dynamic")
    finish(store, planned, measure, lambda run, stage: PROGRAM if mine(run, stage) else {})
    for path in Path(store.root / "provenance").iterdir():
        path.unlink()
    assert "code" in refusals(planned, store)["dynamic"]
