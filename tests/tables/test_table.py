from collections.abc import Callable
from dataclasses import replace

import pytest

from paribus.errors import DataError, SpecError
from paribus.jobs.runs import remember
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage
from paribus.project import Project, find
from paribus.spec.experiment import Claim
from paribus.spec.table import PaperTable
from paribus.store.store import Store
from paribus.tables.experiment import experiment_table, tables_for
from paribus.tables.power import needed, notes
from paribus.tables.published import paper_column, paper_row, paper_table
from paribus.tables.table import Cell, Row, Table

Fill = Callable[..., None]
Measure = Callable[[PlannedRun, Stage], list[tuple[str, str | None, float]]]


@pytest.fixture
def planned(project: Project) -> Plan:
    return plan(project, "masks", "mini")


@pytest.fixture
def paper(project: Project) -> PaperTable:
    return project.tables.get("roberta-table1")


def cells(table: Table, row: str) -> dict[str, Cell | None]:
    (found,) = [each for each in table.rows if each.key == row]
    return {column.key: cell for column, cell in zip(table.columns, found.cells, strict=True)}


def cell(table: Table, row: str, column: str) -> Cell:
    found = cells(table, row)[column]
    assert found is not None
    return found


def keys(run: PlannedRun, kind: str) -> list[str]:
    return [stage.key for stage in run.stages if stage.kind == kind]


def run_of(planned: Plan, label: str, seed: int) -> PlannedRun:
    return next(run for run in planned.runs if (run.arm.label, run.seed) == (label, seed))


def test_the_papers_columns_come_first_then_ours(planned: Plan, store: Store, paper: PaperTable, fill: Fill) -> None:
    fill(store, planned)
    table = experiment_table(planned, store, paper)
    assert [(column.key, column.unit, column.published) for column in table.columns] == [
        ("squad2_f1", "as printed", True),
        ("mnli_m_acc", "as printed", True),
        ("sst2_acc", "as printed", True),
        ("mlm.loss", "nats", False),
        ("mlm.perplexity", "perplexity", False),
        ("grammar.mcc", "points", False),
        ("casing.f1", "points", False),
        ("equal", "as printed", False),
    ]
    assert [column.split for column in table.columns] == ["dev", "dev", "dev", "test", "test", "dev", "dev", None]
    assert [row.key for row in table.rows] == ["reference", "static", "dynamic", "unigram", "majority"]
    assert [row.baseline for row in table.rows] == [False, True, False, False, False]
    assert (table.question or "").startswith("Does drawing") and table.expect == "no measurable difference"


def test_a_cell_of_ours_is_the_aggregate_and_the_paired_difference(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned)
    table = experiment_table(planned, store, paper)
    found = cell(table, "dynamic", "grammar.mcc")
    assert [sample.value for sample in found.samples] == pytest.approx([61.0, 62.0, 63.0])
    assert [sample.seed for sample in found.samples] == [0, 1, 2]
    assert found.samples[1].run == run_of(planned, "dynamic", 1).key
    assert found.value == pytest.approx(62.0)
    assert found.difference and (found.difference.mean, found.difference.n) == (pytest.approx(2.0), 3)
    assert found.difference.low == pytest.approx(2.0 - 4.302652729749462 / 3**0.5)
    assert cell(table, "static", "grammar.mcc").difference is None
    assert cell(table, "dynamic", "mlm.loss").value == pytest.approx(4.42)


def test_published_values_stand_beside_the_arm_of_the_same_name(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned)
    table = experiment_table(planned, store, paper)
    assert cell(table, "dynamic", "squad2_f1") == Cell(78.7)
    assert cells(table, "reference")["mlm.loss"] is None


def test_an_arm_that_the_paper_does_not_have_has_empty_published_cells(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned)
    renamed = replace_key(paper, "dynamic", "fresh")
    table = experiment_table(planned, store, renamed)
    assert cells(table, "dynamic")["squad2_f1"] is None
    assert [row.key for row in table.rows][:2] == ["reference", "fresh"]


def test_an_experiment_says_which_row_of_the_paper_an_arm_is(project: Project, store: Store, fill: Fill) -> None:
    path = project.root / "experiments" / "plain.yaml"
    path.write_text(path.read_text() + 'reproduces: {roberta-table1: {"40": dynamic}}\n')
    fill(store, plan(project, "plain", "mini"))
    (table,) = tables_for(project, store, "plain", "mini")
    assert cell(table, "40", "squad2_f1") == Cell(78.7) and cells(table, "15")["squad2_f1"] is None
    assert [row.key for row in table.rows if row.group == "Published only"] == ["reference", "static"]


@pytest.fixture
def with_sst2(project: Project, store: Store, fill: Fill) -> Plan:
    folder = project.root / "data" / "glue_data" / "SST-2"
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("sentence\tlabel\nfine\t1\n")
    path = project.root / "experiments" / "masks.yaml"
    path.write_text(path.read_text().replace("[grammar, casing]", "[grammar, sst2]"))
    planned = plan(project, "masks", "mini")
    fill(store, planned)
    return planned


def test_a_task_of_the_papers_stands_in_its_order_under_its_label(
    with_sst2: Plan, store: Store, paper: PaperTable
) -> None:
    table = experiment_table(with_sst2, store, paper)
    ours = [(column.key, column.label) for column in table.columns if not column.published]
    assert ours[2:4] == [("sst2.accuracy", "SST-2 acc"), ("grammar.mcc", "grammar mcc")]
    assert cell(table, "static", "sst2.accuracy").value == pytest.approx(60.0)


def test_a_column_that_the_paper_has_too_holds_its_value_and_ours(
    with_sst2: Plan, store: Store, paper: PaperTable
) -> None:
    table = experiment_table(with_sst2, store, paper)
    assert [column.key for column in table.columns if column.published] == ["squad2_f1", "mnli_m_acc"]
    assert [(column.key, column.beside) for column in table.columns if column.beside] == [("sst2.accuracy", "sst2_acc")]
    found = cell(table, "dynamic", "sst2.accuracy")
    assert (found.published, found.value, len(found.samples)) == (92.9, pytest.approx(62.0), 3)
    assert found.difference and found.difference.mean == pytest.approx(2.0) and found.verdict
    assert cell(table, "reference", "sst2.accuracy") == Cell(None, published=92.8)
    assert cell(table, "majority", "sst2.accuracy").published is None
    assert any("marked published" in note for note in table.notes)


@pytest.mark.parametrize("other", [{"split": "test"}, {"metric": "f1"}, {"task": "sst5"}])
def test_a_column_of_another_split_metric_or_task_stays_the_papers_own(
    other: dict[str, str], with_sst2: Plan, store: Store, paper: PaperTable
) -> None:
    columns = [c.model_copy(update=other) if c.key == "sst2_acc" else c for c in paper.columns]
    table = experiment_table(with_sst2, store, paper.model_copy(update={"columns": tuple(columns)}))
    assert [column.key for column in table.columns if column.published] == ["squad2_f1", "mnli_m_acc", "sst2_acc"]
    assert cell(table, "dynamic", "sst2_acc") == Cell(92.9)
    assert cell(table, "dynamic", "sst2.accuracy").published is None


def test_no_arm_stands_beside_a_difference_of_other_rows(planned: Plan, paper: PaperTable) -> None:
    differences = [row.model_copy(update={"group": "difference"}) for row in paper.rows]
    (dynamic,) = (arm for arm in planned.arms if arm.label == "dynamic")
    assert paper_row(planned, dynamic, paper) is not None
    assert paper_row(planned, dynamic, paper.model_copy(update={"rows": tuple(differences)})) is None


def test_rows_that_no_arm_can_stand_for_are_listed_with_what_it_would_take(project: Project, store: Store) -> None:
    (table,) = tables_for(project, store, "bart-table1", "mini")
    assert table.notes[0].startswith("There are no runs")
    assert table.notes[1].startswith("Rows without an arm of ours: token_masking, token_deletion,")
    assert table.notes[1].endswith("(needs a decoder: a model slot of its own and generation tasks).")


def replace_key(paper: PaperTable, old: str, new: str) -> PaperTable:
    rows = [row.model_copy(update={"key": new}) if row.key == old else row for row in paper.rows]
    return paper.model_copy(update={"rows": tuple(rows)})


def test_the_references_are_what_a_model_that_learnt_nothing_scores(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned)
    table = experiment_table(planned, store, paper)
    assert cell(table, "unigram", "mlm.loss").value == 6.0
    assert cell(table, "unigram", "mlm.perplexity").value == pytest.approx(403.428793)
    assert cell(table, "majority", "casing.f1").value == 25.0
    assert cell(table, "unigram", "mlm.loss").stage == keys(planned.runs[0], "pack")[0]


def test_a_diverged_run_is_counted_and_is_in_no_cell(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    lost = run_of(planned, "dynamic", 2)
    fill(store, planned, diverged=keys(lost, "pretrain"))
    table = experiment_table(planned, store, paper)
    assert [sample.seed for sample in cell(table, "dynamic", "mlm.loss").samples] == [0, 1]
    assert "5 of 6 runs are done (seeds asked: 3); dynamic: 1 diverged." in table.notes


def test_a_seed_without_its_baseline_is_in_the_aggregate_and_in_no_pair(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned, missing=keys(run_of(planned, "static", 0), "evaluate"))
    found = cell(experiment_table(planned, store, paper), "dynamic", "mlm.loss")
    assert len(found.samples) == 3
    assert found.difference and found.difference.n == 2


def test_failed_runs_are_told_from_missing_ones(planned: Plan, store: Store, paper: PaperTable, fill: Fill) -> None:
    lost = [run_of(planned, "dynamic", seed) for seed in (1, 2)]
    fill(store, planned, missing=[key for run in lost for key in keys(run, "evaluate")])
    table = experiment_table(planned, store, paper, failed={lost[0].key})
    assert "4 of 6 runs are done (seeds asked: 3); dynamic: 1 failed; dynamic: 1 missing." in table.notes


def test_before_any_run_the_paper_stands_alone(project: Project, store: Store) -> None:
    (table,) = tables_for(project, store, "masks", "mini", seeds=2, overrides={"optimizer.lr": 0.01})
    assert table.name == "roberta-table1" and all(column.published for column in table.columns)
    command = "paribus run masks --scale mini --seeds 2 --set optimizer.lr=0.01"
    assert table.notes[0] == f"There are no runs of masks@mini yet; this makes them: `{command}`"


def test_runs_that_all_failed_are_no_blank_page(planned: Plan, store: Store, paper: PaperTable) -> None:
    table = experiment_table(planned, store, paper, failed={run.key for run in planned.runs})
    assert "0 of 6 runs are done (seeds asked: 3); static: 3 failed; dynamic: 3 failed." in table.notes


def test_an_experiment_of_no_paper_has_our_columns_only(project: Project, store: Store, fill: Fill) -> None:
    (empty,) = tables_for(project, store, "plain", "mini")
    assert [row.key for row in empty.rows] == ["15", "40"]
    assert empty.notes[0].startswith("There are no runs of plain@mini yet")
    fill(store, plan(project, "plain", "mini"))
    (table,) = tables_for(project, store, "plain", "mini")
    assert not any(column.published for column in table.columns)
    assert cell(table, "40", "casing.f1").value == pytest.approx(61.5)  # the mean of seeds 0 and 1


def test_a_papers_table_brings_the_experiments_that_reproduce_it(
    project: Project, planned: Plan, store: Store, fill: Fill
) -> None:
    fill(store, planned)
    found = {table.name: table for table in tables_for(project, store, "roberta-table1", "mini")}
    assert cell(found["masks@mini"], "dynamic", "squad2_f1").value == 78.7


def test_a_table_that_nothing_reproduces_says_so(project: Project, store: Store) -> None:
    (table,) = tables_for(project, store, "roberta-glue-test", "mini")
    assert len(table.rows) == len(project.tables.get("roberta-glue-test").rows)
    assert table.notes[0] == "There are no runs: no experiment says `reproduces: roberta-glue-test` yet."
    (table,) = tables_for(project, store, "roberta-hyperparameters-pretraining", "mini")
    assert table.notes[0].startswith("Settings of a paper, nothing to run")


RESULTS = """
question: Which model reads best?
expect: the larger one
reproduces: {albert-squad-race: {roberta: roberta}, roberta-race: {bert: bert_large}}
base: [bert-relative, roberta-relative]
seeds: 3
tasks: [race-all, squad]
sesoi: {points: 1}
"""


@pytest.fixture
def results(project: Project) -> Project:
    """With an experiment of two bases on two tasks of the papers, whose files are there by name."""
    text = RESULTS.replace("{roberta: roberta}", "{roberta-relative: roberta}").replace("{bert:", "{bert-relative:")
    (project.root / "experiments" / "reading.yaml").write_text(text)
    for name in ("race/RACE/train", "race/RACE/dev", "squad/train-v1.1.json", "squad/dev-v1.1.json"):
        (path := project.root / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return project


def test_results_stand_beside_each_table_that_the_experiment_reproduces(
    results: Project, store: Store, fill: Fill
) -> None:
    fill(store, plan(results, "reading", "mini"))
    (own,) = tables_for(results, store, "reading", "mini")
    (race,) = tables_for(results, store, "roberta-race", "mini")
    (both,) = [t for t in tables_for(results, store, "albert-squad-race", "mini") if t.name.startswith("reading")]
    assert own.rows == both.rows and (own.name, race.name) == ("reading@mini", "reading@mini,roberta-race")
    assert cell(both, "roberta-relative", "squad2_f1_dev") == Cell(89.4)
    assert cell(race, "bert-relative", "race_acc") == Cell(72.0) and cells(race, "roberta-relative")["race_acc"] is None
    # The same numbers and the same verdicts, whatever they stand beside.
    for column in ("race-all.accuracy", "squad.span-f1", "words.bits_per_byte"):
        one, other = (cell(table, "roberta-relative", column) for table in (race, both))
        assert (one.samples, one.difference, one.verdict) == (other.samples, other.difference, other.verdict)


def test_an_arm_stands_beside_the_row_of_its_scale(results: Project, store: Store) -> None:
    path = results.root / "experiments" / "reading.yaml"
    by_scale = "{bert-relative: {default: bert_large, mini: null}}"
    path.write_text(path.read_text().replace("{bert-relative: bert_large}", by_scale))
    planned, paper = plan(results, "reading", "mini"), results.tables.get("roberta-race")
    assert paper_row(planned, planned.baseline, paper) is None
    row = paper_row(replace(planned, scale="debug"), planned.baseline, paper)
    assert row is not None and row.key == "bert_large"


def test_a_metric_that_the_paper_prints_is_shown_besides_the_one_that_gets_the_verdict(
    results: Project, store: Store, fill: Fill
) -> None:
    fill(store, plan(results, "reading", "mini"))
    (race,) = tables_for(results, store, "roberta-race", "mini")
    (own,) = tables_for(results, store, "reading", "mini")
    scores = [(c.label, c.judged) for c in own.columns if c.key.startswith(("race", "squad.")) and not c.published]
    assert scores == [("SQuAD 1.1 F1 (dev)", True), ("SQuAD 1.1 EM (dev)", False), ("RACE acc (dev)", True)]
    assert "squad.em" not in {column.key for column in race.columns}
    assert cell(own, "roberta-relative", "squad.em").verdict is None
    assert any("by the metric shown (of several: squad span-f1), on items" in note for note in own.notes)


def test_results_say_first_that_they_do_not_compare_with_what_is_published_and_on_which_split_each_is(
    results: Project, store: Store, fill: Fill
) -> None:
    fill(store, plan(results, "reading", "mini"))
    (race,) = tables_for(results, store, "roberta-race", "mini")
    assert race.warnings[0].startswith("Ours and what is published do not compare. Published: the systems of the paper")
    assert "scale mini, base bert-relative or roberta-relative, corpus sotu, 65,536 tokens a run" in race.warnings[0]
    assert race.warnings[0].endswith("On test there, on dev here: RACE acc.")
    assert [column.label for column in race.columns][:2] == ["RACE acc (test)", "RACE Middle acc (test)"]
    assert "The paper's row beside an arm: bert-relative: BERT-large." in race.notes
    assert "Columns of the paper that no task of reading measures: RACE Middle acc, RACE High acc." in race.notes
    assert cell(race, "roberta-relative", "equal").value == "~ another base"


def test_a_papers_table_without_the_tasks_data_stands_alone_and_says_what_lacks(project: Project, store: Store) -> None:
    (table,) = tables_for(project, store, "deberta-base", "debug")
    assert table.name == "deberta-base" and len(table.rows) == 3
    assert table.notes[0].startswith("There are no runs of results-glue here: task cola (")
    assert table.notes[1].startswith("There are no runs of results-squad here: task squad (")
    with pytest.raises(DataError, match="results-squad.yaml: tasks .*: task squad .* has no train-v1.1.json"):
        tables_for(project, store, "results-squad", "debug")


def test_middle_and_high_questions_of_race_are_no_column_of_the_papers(project: Project) -> None:
    # Theirs are answered by a model of both.
    table = project.tables.get("roberta-race")
    found = [paper_column(project.task(name), "accuracy", table) for name in ("race-all", "race-middle", "race-high")]
    assert [column and column.key for column in found] == ["race_acc", None, None]


def test_hyper_parameters_are_rows(project: Project) -> None:
    table = paper_table(project.tables.get("roberta-hyperparameters-pretraining"))
    assert len(table.columns) == 2 and len(table.rows) == 24
    assert all(isinstance(row, Row) and len(row.cells) == 2 for row in table.rows)


def test_an_unknown_name_is_an_error_that_suggests(project: Project, store: Store) -> None:
    with pytest.raises(SpecError, match=r"'roberta-table11' \(did you mean roberta-table1\?\)"):
        tables_for(project, store, "roberta-table11", "mini")


def other_rows(planned: Plan) -> Plan:
    """The plan whose arms but the baseline are evaluated on other rows."""

    def moved(stage: Stage) -> Stage:
        return replace(stage, inputs={**stage.inputs, "pack": "pack-0"}) if stage.kind == "evaluate" else stage

    runs = [run if run.arm.baseline else replace(run, stages=list(map(moved, run.stages))) for run in planned.runs]
    return replace(planned, runs=runs)


def test_losses_on_other_held_out_tokens_are_shown_without_a_difference(
    planned: Plan, store: Store, fill: Fill
) -> None:
    fill(store, planned)
    warning = "nats and perplexities of different tokens do not compare"
    assert not any(warning in note for note in experiment_table(planned, store).notes)
    found = experiment_table(other_rows(planned), store)
    assert any(warning in note for note in found.notes)
    losses = [row.cells[0] for row in found.rows if row.arm]
    assert all(cell and cell.samples and cell.difference is None for cell in losses)


def other_vocabulary(planned: Plan) -> Plan:
    """The plan with another vocabulary stage, of no measurements, in its second run."""
    first, second = planned.runs[:2]
    renamed = [
        replace(stage, key="vocabulary-0000") if stage.kind == "vocabulary" else stage for stage in second.stages
    ]
    return replace(planned, runs=[first, replace(second, stages=renamed), *planned.runs[2:]])


def test_arms_with_other_vocabularies_are_compared_by_words(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned)
    table = experiment_table(other_vocabulary(planned), store)
    assert [(column.key, column.unit) for column in table.columns][:2] == [
        ("words.bits_per_byte", "bits"),
        ("words.word_accuracy", "points"),
    ]
    assert any("nats and perplexities of tokens do not compare" in note for note in table.notes)
    found = cell(table, "dynamic", "words.bits_per_byte")
    assert found.value == pytest.approx(1.9) and found.difference and found.difference.mean == pytest.approx(-0.1)
    assert cell(table, "static", "words.word_accuracy").value == pytest.approx(30)
    assert cell(table, "unigram", "words.bits_per_byte").value == 2.5
    assert cells(table, "unigram")["words.word_accuracy"] is None
    told = "static 1.50 tokens a word, 3.25 bytes a token, 0.10 % [UNK], unigram 2.500 bits a byte"
    assert any(told in note for note in table.notes)


def test_provenance_names_every_run_and_its_state(planned: Plan, store: Store, paper: PaperTable, fill: Fill) -> None:
    fill(store, planned)
    told = experiment_table(planned, store, paper).provenance
    assert (told["experiment"], told["scale"], told["paper"]) == ("masks", "mini", "roberta-table1")
    assert [run["run"] for run in told["runs"]] == [run.key for run in planned.runs]
    assert {run["state"] for run in told["runs"]} == {"done"}


# --- settings and tuning ---


def test_numbers_in_which_arms_differ_are_columns(project: Project, store: Store, fill: Fill) -> None:
    fill(store, plan(project, "plain", "mini"))
    (table,) = tables_for(project, store, "plain", "mini")
    assert [column.key for column in table.columns][:2] == ["objective.rate", "mlm.loss"]
    assert [cell(table, row, "objective.rate").value for row in ("15", "40")] == [0.15, 0.4]
    assert cells(table, "unigram")["objective.rate"] is None and cell(table, "unigram", "mlm.loss").value == 6.0


def test_two_settings_that_end_alike_are_called_by_their_paths(project: Project, store: Store, planned: Plan) -> None:
    same, other = planned.arms
    run = other.run
    changed = run.model_copy(
        update={
            "encoder": run.encoder.model_copy(update={"dropout": 0.2}),
            "finetuning": run.finetuning.model_copy(update={"dropout": (0.3,)}),
        }
    )
    table = experiment_table(replace(planned, arms=[same, replace(other, run=changed)]), store)
    assert [column.label for column in table.columns][:2] == ["encoder.dropout", "finetuning.dropout"]


def test_a_tuned_table_shows_the_papers_columns_of_each_arm(project: Project, store: Store, fill: Fill) -> None:
    for _ in range(2):  # the trials, then the runs they make known
        fill(store, plan(project, "sizes", "mini", results=store))
    (table,) = tables_for(project, store, "sizes", "mini")
    assert [column.label for column in table.columns if not column.published][:3] == ["batch_tokens", "steps", "lr"]
    given = ("budget.batch_tokens", "budget.steps", "optimizer.lr")
    assert [cell(table, "bsz-256", path).value for path in given] == [1024, 64, 8.41e-05]
    assert [cell(table, "bsz-2k", path).value for path in given] == [8192, 8, 0.000237]
    assert cell(table, "bsz-2k", "steps").value == 125000  # the paper's own
    assert "4 of 4 runs are done (seeds asked: 2)." in table.notes
    assert len(cell(table, "bsz-2k", "mlm.loss").samples) == 2
    about = [note for note in table.notes if note.startswith("optimizer.lr")]
    assert about[0].startswith("optimizer.lr is each arm's own best of 3 trials by loss on validation documents, at")
    assert about[1] == (
        "optimizer.lr of bsz-256: 8.41e-05 (3 of 3 trials; 3 budgets). Validation loss by value: "
        "8.41e-05 9.900, 0.000141 9.900, 0.000238 9.900. Expected best of 1 to 3 trials: 9.900, 9.900, 9.900. "
        "None was tried beyond it, so a better one may lie there."
    )


def test_an_arm_whose_tuning_goes_on_says_so(project: Project, store: Store, fill: Fill) -> None:
    found = plan(project, "sizes", "mini", results=store)
    fill(store, found, missing=[key for run in found.trials[-2:] for key in keys(run, "evaluate")])
    (table,) = tables_for(project, store, "sizes", "mini")
    assert cells(table, "bsz-2k")["optimizer.lr"] is None and cells(table, "bsz-2k")["mlm.loss"] is None
    assert "0 of 4 runs are done (seeds asked: 2); bsz-2k: 2 untuned; bsz-256: 2 missing." in table.notes
    account = "optimizer.lr of bsz-2k: none yet (1 of 3 trials; 1 budgets). Validation loss by value: 0.000399 9.900."
    assert account in table.notes
    assert "Arms had unequal numbers of trials: bsz-256 3, bsz-2k 1." in table.notes


def test_a_discriminator_has_no_mlm_loss_but_its_generators_and_what_it_finds(
    project: Project, store: Store, fill: Fill, measure: Measure
) -> None:
    planned = plan(project, "shared", "mini")

    def measured(run: PlannedRun, stage: Stage) -> list[tuple[object, ...]]:
        if stage.kind != "evaluate":
            return [*measure(run, stage)]
        better = 0.0 if run.arm.baseline else 0.1
        found = {("generator", "loss"): 4.0 - better, ("rtd", "loss"): 0.3, ("rtd", "auc"): 0.7 + better}
        found |= {("rtd", "precision"): 0.6, ("rtd", "recall"): 0.2}
        return [(metric, "test", value, task) for (task, metric), value in found.items()]

    fill(store, planned, measured)
    table = experiment_table(planned, store, project.tables.get("debertav3-ablation"))
    ours = [column.key for column in table.columns if not column.published]
    assert ours == ["generator.loss", "rtd.precision", "rtd.recall", "rtd.auc", "casing.f1", "equal"]
    assert cell(table, "nes", "generator.loss").value == pytest.approx(3.9)
    found = cell(table, "nes", "rtd.auc")
    assert found.value == pytest.approx(80.0) and found.difference and found.difference.mean == pytest.approx(10.0)
    assert cell(table, "nes", "mnli_m_acc") == Cell(88.3) and cell(table, "es", "squad2_em") == Cell(83.5)
    assert cell(table, "unigram", "generator.loss").value == 6.0 and cell(table, "majority", "rtd.auc").value == 50.0
    notes = " ".join(table.notes)
    assert "es one on the joint loss; nes generator, then discriminator" in notes
    assert "MLM loss: nats a masked token on held-out documents (test split). It measures the generator" in notes


FORMATS = """
question: Do pairs help?
expect: "no"
reproduces: roberta-table2
base: bert-relative
factors: [input-format]
levels: {input-format: [segment-pair, sentence-pair, segment-pair-no-nsp]}
seeds: 2
tasks: [casing]
"""


def test_arms_on_other_held_out_rows_have_no_difference_in_their_loss_and_the_foot_says_so(
    project: Project, store: Store, fill: Fill, measure: Measure
) -> None:
    (project.root / "experiments/formats.yaml").write_text(FORMATS)
    planned = plan(find(project.root), "formats", "mini")

    def padded(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
        share = 0.5 if run.arm.run.packing.kind == "sentence-pairs" else 0.0512
        more = {"pack": [("padding_share", "train", share)]}
        if run.arm.run.objective.sentence != "none":  # type: ignore[attr-defined]
            told = [("sentence_accuracy", "test", 0.9), ("majority.sentence_accuracy", "test", 0.5)]
            more["evaluate"] = told  # type: ignore[assignment]
        return [*measure(run, stage), *more.get(stage.kind, [])]

    fill(store, planned, padded)
    table = experiment_table(planned, store, project.tables.get("roberta-table2"))
    assert cell(table, "sentence-pair", "squad1_f1") == Cell(88.7)
    assert cell(table, "segment-pair", "race_acc") == Cell(64.2)
    assert cell(table, "sentence-pair", "mlm.loss").difference is None
    assert cell(table, "sentence-pair", "casing.f1").difference is not None
    assert cell(table, "segment-pair-no-nsp", "mlm.loss").difference is not None  # the same rows
    (padding,) = [note for note in table.notes if note.startswith("Padding")]
    assert padding.endswith("segment-pair 5.1 %, sentence-pair 50.0 %, segment-pair-no-nsp 5.1 %.")
    (rows,) = [note for note in table.notes if note.startswith("Held-out tokens differ")]
    assert rows.startswith("Held-out tokens differ between segment-pair and sentence-pair: ")
    (sentences,) = [note for note in table.notes if note.startswith("Sentence objective")]
    assert sentences.endswith(
        "segment-pair 90.0 % right (a constant answer 50.0 %), sentence-pair 90.0 % right (a constant answer 50.0 %)."
    )


def test_arms_that_share_their_rows_have_no_note_of_padding_or_of_other_rows(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill
) -> None:
    fill(store, planned)
    notes = experiment_table(planned, store, paper).notes
    assert not [note for note in notes if note.startswith(("Padding", "Sentence objective"))]


UNITS = """
question: Do whole words help?
expect: "no"
base: bert-relative
factors: [masking-unit]
levels: {masking-unit: [token, whole-word]}
seeds: 2
tasks: [casing]
"""


def test_losses_of_arms_that_learnt_to_predict_other_units_have_no_difference(
    project: Project, store: Store, fill: Fill
) -> None:
    (project.root / "experiments/units.yaml").write_text(UNITS)
    planned = plan(find(project.root), "units", "mini")
    fill(store, planned)
    table = experiment_table(planned, store)
    assert cell(table, "whole-word", "mlm.loss").samples and cell(table, "whole-word", "mlm.loss").difference is None
    assert cell(table, "whole-word", "casing.f1").difference is not None
    assert cell(table, "whole-word", "words.bits_per_byte").difference is not None  # the same words, masked whole
    assert not any("Arms differ in their vocabulary" in note for note in table.notes)
    assert any("were trained to predict other units" in note for note in table.notes)


def test_minimal_pairs_are_a_column_without_any_tuning(project: Project, store: Store, fill: Fill) -> None:
    planned = plan(project, "pairs", "mini")
    fill(store, planned)
    table = experiment_table(planned, store)
    key = "unlikely.phenomenon-accuracy"
    ours = [column.key for column in table.columns if column.unit != "as printed"]
    assert ours == ["mlm.loss", "mlm.perplexity", key]
    assert cell(table, "15", key).value == pytest.approx(60.0)
    assert cell(table, "40", key).value == pytest.approx(61.5)
    difference = cell(table, "40", key).difference
    assert difference is not None and difference.mean == pytest.approx(1.5)
    assert cell(table, "majority", key).value == 50.0
    (note,) = [note for note in table.notes if note.startswith("unlikely")]
    assert "(summed pseudo-log-likelihood, within-word-l2r), mean over phenomena" in note
    assert "a tie is wrong (median over seeds: 40 0.40 %)." in note
    assert note.endswith("Pairs left out, longer than a row of pretraining: 15 3, 40 3.")
    assert not any("learning rates" in note for note in table.notes)


def test_a_discriminator_has_its_own_score_of_a_sentence(project: Project, store: Store, fill: Fill) -> None:
    text = (project.root / "experiments/shared.yaml").read_text()
    (project.root / "experiments/shared.yaml").write_text(text.replace("[casing]", "[unlikely]"))
    planned = plan(find(project.root), "shared", "mini")
    fill(store, planned)
    (note,) = [note for note in experiment_table(planned, store).notes if note.startswith("unlikely")]
    assert "(sum of log P(original))" in note


def changed(project: Project, name: str, changes: str) -> Plan:
    """An experiment of two arms: as the base is, and with `changes`."""
    (project.root / "ablations").mkdir(exist_ok=True)
    (project.root / f"ablations/{name}.yaml").write_text(
        f"source: a test\nbase: plain\nlevels: {{plain: {{}}, other: {{{changes}}}}}\n"
    )
    (project.root / f"experiments/{name}.yaml").write_text(
        f"question: '?'\nexpect: '?'\nbase: bert-relative\nfactors: [{name}]\nseeds: 3\ntasks: [casing, unlikely]\n"
    )
    return plan(find(project.root), name, "mini")


def test_an_arm_with_other_tasks_than_the_baseline_is_refused(project: Project) -> None:
    with pytest.raises(SpecError, match="tasks.yaml: arm 'other' has other evaluation.tasks than the baseline"):
        changed(project, "tasks", "evaluation.tasks: []")


@pytest.mark.parametrize(
    "changes, said, compared",
    [
        ("tokenizer.lowercase: false", "Held-out words differ between plain and other", {"casing.f1"}),
        ("corpus.documents: 60", "Held-out words differ between plain and other", {"casing.f1"}),
        ("tokenizer.vocabulary_size: 300", "Other pairs than plain, no difference: other.", {"casing.f1", "words"}),
        ("evaluation.minimal_pairs.per_paradigm: 5", "Other pairs than plain", {"casing.f1", "mlm.loss"}),
        ("objective.replacement: {mask: 0.0, random: 1.0}", "other never saw [MASK], by which", {"casing.f1"}),
        ("optimizer.lr: 1e-3", "All else equal", {"casing.f1", "mlm.loss", "unlikely.phenomenon-accuracy"}),
    ],
)
def test_what_was_measured_on_other_items_has_no_difference_and_the_foot_says_so(
    project: Project, store: Store, fill: Fill, changes: str, said: str, compared: set[str]
) -> None:
    planned = changed(project, "items", changes)
    fill(store, planned)
    table = experiment_table(planned, store)
    found = cells(table, "other")
    assert any(said in note for note in table.notes), table.notes
    asked = {"casing.f1", "mlm.loss", "unlikely.phenomenon-accuracy", "words.bits_per_byte"} & found.keys()
    names = {"words.bits_per_byte": "words"}
    assert {names.get(key, key) for key in asked if (cell_ := found[key]) and cell_.difference} == compared
    assert all(cell_ and cell_.samples for key, cell_ in found.items() if key in asked)


def test_a_seed_whose_finetunings_diverged_leaves_its_column_without_a_verdict(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    lost = set(keys(run_of(planned, "dynamic", 1), "finetune"))

    def but_one(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
        return [] if stage.key in lost and stage.spec.task.name == "grammar" else measure(run, stage)

    fill(store, planned, but_one, diverged=list(lost))
    table = experiment_table(planned, store)
    found = cell(table, "dynamic", "grammar.mcc")
    assert len(found.samples) == 2 and found.verdict and found.verdict.kind == "refused"
    assert found.verdict.why == "fine-tunings of seeds that are done diverged: dynamic 1"
    assert not found.best and not cell(table, "static", "grammar.mcc").best
    assert cell(table, "dynamic", "mlm.loss").verdict.kind != "refused"  # type: ignore[union-attr]


def test_the_foot_names_what_the_experiment_sets_and_cells_that_lie_the_other_way_round(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    def turned(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
        rows = measure(run, stage)
        if stage.kind != "evaluate" or run.arm.baseline:
            return rows
        return [("loss", "test", {0: 4.53, 1: 4.53, 2: 4.0}[run.seed]), *(row for row in rows if row[0] != "loss")]

    fill(store, planned, turned)
    given = declared(planned, set={"optimizer.lr": 0.5}, set_at={"mini": {"corpus": {"kind": "sotu"}}})
    table = experiment_table(given, store)
    assert cell(table, "dynamic", "mlm.loss").difference.mean < 0  # type: ignore[union-attr]
    assert "The medians lie the other way round than the mean paired difference: MLM loss of dynamic." in table.notes
    assert any(note.startswith("Ours: ") and note.endswith("optimizer.lr=0.5; corpus=sotu.") for note in table.notes)


def test_a_table_has_flops_counted_whoever_planned_before(
    project: Project, store: Store, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("paribus.tables.certificate.costs", lambda plan, *_: asked.append(plan.name))
    planned = plan(project, "plain", "mini")
    tables_for(project, store, "plain", "mini")
    assert not asked  # nothing is finished
    fill(store, planned)
    tables_for(project, store, "plain", "mini")
    assert asked == ["plain@mini"]


# --- verdicts --------------------------------------------------------------------------------------------------------


def noisy(run: PlannedRun, stage: Stage, measure: Measure, gain: float = 0.0) -> list[tuple[str, str | None, float]]:
    """As measured by hand, but for a loss that moves at each seed, and by `gain` in the other arm."""
    rows = measure(run, stage)
    if stage.kind != "evaluate":
        return rows
    loss = 4.5 + 0.02 * run.seed + (0.0 if run.arm.baseline else -gain + 0.001 * (-1) ** run.seed)
    return [("loss", "test", loss), *(row for row in rows if row[0] != "loss")]


def declared(planned: Plan, **fields: object) -> Plan:
    return replace(planned, experiment=planned.experiment.model_copy(update=fields))


def test_a_clear_gain_helps_and_its_arm_alone_is_bold(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill, measure: Measure
) -> None:
    fill(store, planned, lambda run, stage: noisy(run, stage, measure, gain=0.3))
    table = experiment_table(planned, store, paper)
    found = cell(table, "dynamic", "mlm.loss")
    assert found.verdict and (found.verdict.kind, found.verdict.family) == ("helps", 3)
    assert found.best and not cell(table, "static", "mlm.loss").best
    assert cell(table, "static", "grammar.mcc").best and cell(table, "dynamic", "grammar.mcc").best
    assert cell(table, "dynamic", "mlm.perplexity").verdict is None  # the loss once more
    assert any(
        "corrected for all contrasts of this table together (3: its arms on MLM loss, grammar" in note
        for note in table.notes
    )


def test_no_gain_is_equivalent_where_an_effect_of_interest_is_declared(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill, measure: Measure
) -> None:
    fill(store, planned, lambda run, stage: noisy(run, stage, measure))
    plain = cell(experiment_table(planned, store, paper), "dynamic", "mlm.loss").verdict
    assert plain and plain.kind == "inconclusive" and plain.more_seeds is None
    table = experiment_table(declared(planned, sesoi={"nats": 0.1, "points": 1.0}), store, paper)
    found = cell(table, "dynamic", "mlm.loss").verdict
    assert found and found.kind == "equivalent" and found.sesoi == 0.1 and found.detectable
    points = cell(table, "dynamic", "grammar.mcc").verdict
    assert points and points.kind == "inconclusive" and points.more_seeds and points.hours is not None
    assert not any("nothing can be called equivalent" in note for note in table.notes)


def test_a_refused_arm_has_no_verdict_is_not_bold_and_the_foot_says_why(
    planned: Plan, store: Store, paper: PaperTable, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, planned)
    monkeypatch.setattr("paribus.tables.certificate.Certificate.refusal", "another learning rate")
    table = experiment_table(planned, store, paper)
    found = cell(table, "dynamic", "grammar.mcc")
    assert found.verdict and found.verdict.kind == "refused" and found.difference and not found.best
    assert "No verdict: another learning rate." in table.notes


def test_one_seed_has_no_verdict_and_nothing_bold(project: Project, store: Store, fill: Fill) -> None:
    single = plan(project, "masks", "mini", seeds=1)
    fill(store, single)
    table = experiment_table(single, store)
    cells = [each for row in table.rows for each in row.cells if each]
    assert {each.verdict.kind for each in cells if each.verdict} == {"one seed"}
    assert not any(each.best for each in cells)
    assert "One seed decides nothing, so there is no verdict." in table.notes


def test_a_table_that_is_not_finished_says_so_first(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned, missing=keys(run_of(planned, "dynamic", 2), "evaluate"))
    assert experiment_table(planned, store).warnings == (
        "Not finished: of 6 runs 1 missing. Numbers and verdicts may still change.",
    )


def test_a_table_with_a_diverged_arm_says_so_first(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned, diverged=keys(run_of(planned, "dynamic", 2), "pretrain"))
    assert experiment_table(planned, store).warnings == (
        "Diverged runs are in no number, which makes their arm look better than it is: dynamic 1.",
    )


def test_arms_that_are_no_better_than_what_learnt_nothing_are_named_before_their_verdicts(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    def worse(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
        if stage.kind == "task":  # as good as the baseline is on all
            return [(f"majority.{metric}", "dev", 0.60) for metric in stage.spec.metrics]
        return [("loss", "test", 6.0 + 0.1 * run.seed)] if stage.kind == "evaluate" else measure(run, stage)

    fill(store, planned, worse)
    table = experiment_table(planned, store)
    assert cell(table, "static", "grammar.mcc").value == pytest.approx(60.0)
    assert table.warnings == (
        "No better than what learnt nothing (last rows), whatever the verdict: MLM loss of static, dynamic; "
        "grammar mcc of static; casing f1 of static.",
    )


def test_bits_of_other_pieces_are_not_held_against_the_baselines_unigrams(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    def worse(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
        rows = measure(run, stage)
        return [(*row[:2], 2.6, *row[3:]) if row[0] == "bits_per_byte" else row for row in rows]

    fill(store, planned, worse)
    asked = other_vocabulary(planned)
    told = "No better than what learnt nothing (last rows), whatever the verdict: masked words, bits a byte of static"
    assert experiment_table(asked, store).warnings[-1] == f"{told}, dynamic."
    assert experiment_table(other_rows(asked), store).warnings[-1] == f"{told}."


def test_runs_of_an_older_version_are_counted_and_not_shown(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned)
    finished = {**{run.key: run.seed for run in planned.runs}, "run-old": 0, "run-older": 1, "run-of-more-seeds": 7}
    assert experiment_table(planned, store, finished=finished).warnings == (
        "2 finished runs of masks@mini in the store, of an older version of this experiment or with other settings, "
        "are not shown.",
    )


def test_seeds_that_were_asked_for_and_are_finished_are_missed_where_fewer_are_shown(
    planned: Plan, project: Project, store: Store, fill: Fill
) -> None:
    more = plan(project, "masks", "mini", seeds=5)
    remember(store, more)
    fill(store, planned)
    finished = {run.key: run.seed for run in more.runs} | {"run-of-other-settings": 7}
    told = "Seeds up to 4 are finished, too, and not shown (asked: 3 seeds): whoever chooses their number by the result"
    (warning,) = experiment_table(planned, store, finished=finished).warnings
    assert warning.startswith(told)
    fill(store, more)
    assert experiment_table(more, store, finished=finished).warnings == ()


def test_a_seed_whose_fine_tunings_have_not_all_ended_is_not_lost_yet(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    tunings = [stage for stage in run_of(planned, "dynamic", 1).stages if stage.kind == "finetune"]
    lost, *waiting = (stage.key for stage in tunings if stage.spec.task.name == "grammar")
    fill(store, planned, lambda r, s: [] if s.key == lost else measure(r, s), missing=waiting, diverged=[lost])
    assert "diverged" not in cell(experiment_table(planned, store), "dynamic", "grammar.mcc").verdict.told


def test_a_claim_is_about_as_many_seeds_as_the_experiment_asks_for(
    planned: Plan, project: Project, store: Store, fill: Fill, measure: Measure
) -> None:
    claim = Claim(arm="dynamic", metric="mlm.loss", direction="better")
    last = [key for label in ("static", "dynamic") for key in keys(run_of(planned, label, 2), "evaluate")]

    def outcome(asked: Plan) -> tuple[str, str]:
        (found,) = experiment_table(declared(asked, claims=(claim,)), store).claims
        return found.outcome, found.found

    fill(store, planned, lambda run, stage: noisy(run, stage, measure, gain=0.3), missing=last)
    assert outcome(planned) == ("undecided", "2 of 3 seeds have ended")
    fill(store, planned, lambda run, stage: noisy(run, stage, measure, gain=0.3))
    assert outcome(planned) == ("met", "helps")
    assert outcome(plan(project, "masks", "mini", seeds=2)) == ("undecided", "2 of 3 seeds have ended")


def test_a_lost_seed_is_one_whatever_else_of_its_run_is_finished(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    stages = {stage.key: stage for stage in planned.stages() if stage.kind == "finetune"}
    casing = [key for key, stage in stages.items() if stage.spec.task.name == "casing"]
    lost = set(keys(run_of(planned, "dynamic", 1), "finetune")) - set(casing)
    fill(store, planned, lambda r, s: [] if s.key in lost else measure(r, s), missing=casing, diverged=list(lost))
    found = cell(experiment_table(planned, store), "dynamic", "grammar.mcc")
    assert found.verdict.why == "fine-tunings of seeds that are done diverged: dynamic 1" and not found.best


def test_claims_are_checked_on_the_contrasts(planned: Plan, store: Store, fill: Fill, measure: Measure) -> None:
    fill(store, planned, lambda run, stage: noisy(run, stage, measure, gain=0.3))
    better = Claim(arm="dynamic", metric="mlm.loss", direction="better")
    worse = Claim(arm="dynamic", metric="mlm.loss", direction="worse")
    open_ = Claim(arm="dynamic", metric="grammar.mcc", direction="better")
    table = experiment_table(declared(planned, claims=(better, worse, open_)), store)
    assert [claim.outcome for claim in table.claims] == ["met", "not met", "undecided"]


def test_seeds_are_planned_from_the_spread_of_the_pilot(
    planned: Plan, store: Store, fill: Fill, measure: Measure
) -> None:
    fill(store, planned, lambda run, stage: noisy(run, stage, measure))
    table = experiment_table(declared(planned, sesoi={"nats": 0.01, "points": 1.0}), store)
    found = {each.metric: each for each in needed(table)}
    loss = found["mlm.loss"]
    assert set(found) == {"mlm.loss", "grammar.mcc", "casing.f1"} and loss.pairs == 3
    assert loss.seeds and loss.cautious and loss.sd < loss.sd_at_most
    (larger,) = needed(table, effect=0.1, metric="mlm.loss")
    assert larger.seeds and larger.seeds < loss.seeds and larger.power_now > loss.power_now
    assert any("small pilot" in note for note in notes(list(found.values()), 0.8))


def test_power_without_a_pilot_an_effect_or_a_known_column_is_an_error(planned: Plan, store: Store, fill: Fill) -> None:
    empty = declared(planned, sesoi={"points": 1.0})
    with pytest.raises(SpecError, match="no contrast has two pairs"):
        needed(experiment_table(empty, store))
    fill(store, planned)
    with pytest.raises(SpecError, match="no `sesoi` is declared for grammar.mcc"):
        needed(experiment_table(planned, store))
    with pytest.raises(SpecError, match=r"no column 'mlm.los' with a verdict \(did you mean mlm.loss"):
        needed(experiment_table(planned, store), 1.0, "mlm.los")
