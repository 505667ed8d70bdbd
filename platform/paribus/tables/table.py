"""One table object: what an experiment measured beside what its paper printed. Numbers are rounded in render only."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from paribus.errors import DataError, SpecError
from paribus.plan.arms import Arm
from paribus.plan.plan import Plan, flatten, plan
from paribus.project import Project
from paribus.spec.base import canonical
from paribus.spec.experiment import GLUE_AVERAGES
from paribus.spec.finetuning import FineTuning
from paribus.spec.load import suggest
from paribus.spec.objective import Rtd
from paribus.spec.table import Column as PaperColumn
from paribus.spec.table import PaperTable, Value
from paribus.spec.table import Row as PaperRow
from paribus.spec.task import Metric, MinimalPairs, Task
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables.certificate import Certificate, certificates, foot
from paribus.tables.frame import averages, chosen, frame, states
from paribus.tables.stats import ALPHA, Difference, aggregate, paired, tied
from paribus.tables.tuning import Tuned, tuned, unequal
from paribus.tables.verdict import Checked, Contrast, Verdict, check, judge

Unit = Literal["points", "nats", "perplexity", "bits", "as printed"]


@dataclass(frozen=True)
class Column:
    """What a column holds. `published`: the paper's own values, as it prints them; settings are as printed too."""

    key: str
    label: str
    unit: Unit
    higher_is_better: bool | None
    published: bool
    judged: bool = False
    """Whether the arms' differences on it get a verdict."""
    beside: str | None = None
    """Of a column of ours that the paper has too: the key of the paper's, whose values stand in its cells."""
    split: str | None = None
    """What it was scored on: train, dev or test."""


_held_out = partial(Column, published=False, split="test")
HELD_OUT = (
    _held_out("mlm.loss", "MLM loss", "nats", False, judged=True),
    _held_out("mlm.perplexity", "MLM perplexity", "perplexity", False),
)
DETECTION = (
    _held_out("generator.loss", "generator MLM loss", "nats", False),
    _held_out("rtd.precision", "replaced precision", "points", True),
    _held_out("rtd.recall", "replaced recall", "points", True),
    _held_out("rtd.auc", "replaced AUC", "points", True),
)
WHOLE_WORDS = (
    _held_out("words.bits_per_byte", "masked words, bits a byte", "bits", False, judged=True),
    _held_out("words.word_accuracy", "whole words right", "points", True, judged=True),
)
# What papers' tables call our tasks and metrics, where it is not their name. Papers answer the middle and high
# questions of RACE by one model; race-middle and race-high are models of their own, so they are no column of theirs.
TASKS = {"squad": "squad1", "race-all": "race", "race-middle": "", "race-high": ""}
METRICS = {
    "accuracy": "acc",
    **dict.fromkeys(("span-f1", "entity-f1", "macro-f1", "f1a", "record-f1"), "f1"),
    **dict.fromkeys(("group-em", "record-em"), "em"),
}
EQUAL = Column("equal", "all else equal", "as printed", None, published=False)


@dataclass(frozen=True)
class Sample:
    """What one run contributed to a cell."""

    seed: int
    run: str
    value: float


@dataclass(frozen=True)
class Cell:
    """A value: as printed by the paper, aggregated over `samples`, or measured once by `stage`.

    In a column of ours that the paper has too `published` is the paper's, and `value` None where there is none of ours.
    """

    value: Value
    samples: tuple[Sample, ...] = ()
    difference: Difference | None = None
    """To the baseline arm, paired by seed."""
    stage: str | None = None
    verdict: Verdict | None = None
    """On the difference, corrected for all that the table judges."""
    best: bool = False
    """Whether it is one of those of its column that may be the best: none is significantly better."""
    published: Value = None


@dataclass(frozen=True)
class Row:
    """A system of the paper, an arm, or a reference to read the others by. One cell a column, None where empty."""

    key: str
    label: str
    group: str
    cells: tuple[Cell | None, ...]
    arm: bool = False
    baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table, ready to be rendered."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    question: str | None = None
    expect: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for, and each run with its state and keys."""
    tuned: tuple[Tuned, ...] = ()
    """How each arm was tuned, where the experiment tunes something."""
    warnings: tuple[str, ...] = ()
    """What a reader must know before the first number."""
    claims: tuple[Checked, ...] = ()
    """What the experiment claims, and whether it is so."""


def tables_for(
    project: Project,
    store: Store,
    name: str,
    scale: str,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    failed: Collection[str] = (),
    allow: Collection[str] = (),
    finished: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Table]:
    """The table of experiment `name`; or, for a paper's table, one of each experiment that reproduces it.

    `failed` are the keys of runs that the queue has given up on, `allow` what the user admits (certificate.ALLOWED),
    `finished` what each queue has finished (its name to the key of a run to its seed). SpecError where nothing has that
    name.
    """

    def table(experiment: str, paper: PaperTable | None) -> Table:
        planned = plan(project, experiment, scale, seeds, overrides, store)
        made = (finished or {}).get(planned.name, {})
        return experiment_table(planned, store, paper, failed, allow, made)

    if name in project.experiments.paths:
        asked_by = f"{project.experiments.path(name)}: reproduces"
        return [table(name, project.paper(project.experiments.get(name), asked_by))]
    if name not in project.tables.paths:
        known = [*project.experiments.paths, *project.tables.paths]
        raise SpecError(f"no experiment or paper table is called {name!r}" + suggest(name, known))
    paper, found, without = project.tables.get(name), [], []
    claims: list[Checked] = []  # of those without runs: who asks whether claims hold shall hear of them too
    for experiment in reproducing(project, name):
        try:
            made = table(experiment, paper)
        except DataError as error:  # the data of a paper's tasks are the user's: without them the paper's own is shown
            without.append(f"There are no runs of {experiment} here: {error}")
        else:
            if any(row.arm for row in made.rows):
                found.append(made)
                continue
            without.append(made.notes[0])
        claims += [check(claim, None, None) for claim in project.experiments.get(experiment).claims]
    if not found:
        return [replace(paper_table(paper, *(without or [unreproduced(paper)])), claims=tuple(claims))]
    last = found[-1]
    return [*found[:-1], replace(last, notes=(*last.notes, *without), claims=(*last.claims, *claims))]


def reproducing(project: Project, name: str) -> list[str]:
    """The experiments that reproduce the paper's table `name`."""
    return [other for other in project.experiments if name in project.experiments.get(other).reproduces]


def unreproduced(paper: PaperTable) -> str:
    """Why a paper's table that no experiment reproduces has no rows of ours."""
    if paper.kind == "analysis":
        return "There are no runs: an analysis, which no experiment here makes."
    if paper.kind == "hyperparameters":
        return "Settings of a paper, nothing to run: `paribus list bases` says which of them are trained with here."
    return f"There are no runs: no experiment says `reproduces: {paper.id}` yet."


def paper_table(paper: PaperTable, *notes: str) -> Table:
    """The paper's own table; `notes` go first. Hyper-parameters are turned, so that each is a row."""
    columns = _published_columns(paper)
    rows = [Row(row.key, row.label, row.group, _published(row, columns)) for row in paper.rows]
    if paper.kind == "hyperparameters":
        turned = zip(*(row.cells for row in rows), strict=True)
        rows, columns = (
            [Row(column.key, column.label, "", cells) for column, cells in zip(columns, turned, strict=True)],
            [Column(row.key, row.label, "as printed", None, published=True) for row in rows],
        )
    about = [f"Published: {_cite(paper)}. {paper.protocol}", paper.notes]
    return Table(
        paper.id,
        paper.title,
        tuple(columns),
        tuple(rows),
        tuple(filter(None, [*notes, _lacking(paper), *about])),
        provenance={"paper": paper.id},
    )


def experiment_table(
    plan: Plan,
    store: Store,
    paper: PaperTable | None = None,
    failed: Collection[str] = (),
    allow: Collection[str] = (),
    finished: Mapping[str, int] | None = None,
    stages: Finished | None = None,
    compared: Mapping[str, Certificate] | None = None,
) -> Table:
    """What `plan` measured, a row an arm, beside `paper`, the table it reproduces; the paper alone before any run.

    Each cell of an arm: the aggregate over its seeds, and the difference to the baseline paired by seed. Runs that
    diverged are counted in the notes and are in no cell. `allow`: what the user admits (certificate.ALLOWED).
    `finished`: what the experiment's queue has finished, the key of a run to its seed; those that are none of the
    plan's are counted. `stages`: those of the plan, and `compared`: what `certificates` gave of them, where the caller
    has them already.
    """
    stages = stages or Finished(store, plan.runs)
    measured, found = frame(plan, stages), states(plan, stages, failed)
    untouched = _results(measured).is_empty()
    tried = any(tuning.done for tuning in plan.tunings)
    if untouched and not tried and set(found.values()) <= {"missing", "untuned"}:
        note = f"There are no runs of {plan.name} yet; this makes them: `paribus run {plan.command}`"
        layout = _Layout(plan, stages, measured, found, paper, finished=finished)
        return replace(paper_table(paper, note), warnings=layout.warnings()) if paper else layout.table(note)
    compared = certificates(plan, stages, allow) if compared is None else compared
    layout = _Layout(plan, stages, measured, found, paper, compared, finished)
    return layout.table(*foot(layout.certificates, allow))


def _results(measured: pl.DataFrame) -> pl.DataFrame:
    """What was measured of models."""
    return measured.filter(pl.col("stage").is_in(["evaluate", "finetune"]))


class _Layout:
    """The parts of an experiment's table."""

    def __init__(
        self,
        plan: Plan,
        stages: Finished,
        measured: pl.DataFrame,
        states: Mapping[tuple[str, int], str],
        paper: PaperTable | None,
        certificates: Mapping[str, Certificate] | None = None,
        finished: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.stages, self.measured, self.states, self.paper = plan, stages, measured, states, paper
        self.certificates, self.finished = certificates or {}, finished or {}
        self.refusals = {arm: found.refusal for arm, found in self.certificates.items() if found.refusal}
        self.tasks = plan.baseline.run.evaluation.tasks
        self.scores = self._scores()
        self.runs = {(run.arm.label, run.seed): run for run in plan.runs}
        # Whole models differ in numbers without end; what they have of data and updates is the first to ask for.
        self.settings = {
            path: values
            for path, values in settings(plan.arms).items()
            if len(plan.experiment.base) == 1 or path.startswith("budget.")
        }
        self.tuned = tuple(tuned(tuning) for tuning in plan.tunings)
        objectives = {type(arm.run.objective) for arm in plan.arms}
        self.vocabularies = len({stage.key for stage in plan.stages() if stage.kind == "vocabulary"})
        predicts = bool(objectives - {Rtd})
        self.ours = [
            *(HELD_OUT if predicts and self.vocabularies == 1 else ()),
            *(WHOLE_WORDS if predicts and (self.vocabularies > 1 or self._other_units()) else ()),
            *(DETECTION if Rtd in objectives else ()),
            *(
                Column(
                    f"{task.name}.{metric}",
                    self._label(task, metric),
                    "points",
                    True,
                    published=False,
                    judged=metric == task.metrics[0],
                    beside=theirs.key if (theirs := self._theirs(task, metric)) and _comparable(theirs) else None,
                    split="dev",
                )
                for task, metric in self.scores
            ),
            *(
                [Column("average", str(plan.experiment.average), "points", True, False, True, split="dev")]
                * bool(plan.experiment.average)
            ),
        ]
        shared = {column.beside for column in self.ours}
        columns = _published_columns(paper) if paper else []
        self.published = [column for column in columns if column.key not in shared]
        ours = enumerate(self.ours, len(self.published) + len(self.settings))
        self.judged = {index: column for index, column in ours if column.judged}  # by its place in a row

    def _scores(self) -> list[tuple[Task, Metric]]:
        """The task and metric of each column of scores: a task's first metric, which gets the verdict, and those that
        the paper prints; in the paper's order, then those that it does not have.
        """
        found = [
            (task, metric)
            for task in self.tasks
            for metric in task.metrics
            if metric == task.metrics[0] or self._theirs(task, metric)
        ]
        columns = list(self.paper.columns) if self.paper else []
        places = {pair: columns.index(theirs) for pair in found if (theirs := self._theirs(*pair))}
        return sorted(found, key=lambda pair: places.get(pair, len(columns)))

    def _theirs(self, task: Task, metric: Metric) -> PaperColumn | None:
        return paper_column(task, metric, self.paper) if self.paper else None

    def _label(self, task: Task, metric: Metric) -> str:
        """What a column of scores is called: as in the paper, if that has it. A dagger: chosen on what it reports."""
        theirs, dagger = self._theirs(task, metric), " †" if self._on_dev(task) else ""
        if theirs is None or theirs.metric == "corr":
            return f"{task.name} {metric}{dagger}"
        return (f"{theirs.label.removesuffix(' (test)')} (dev)" if theirs.split == "test" else theirs.label) + dagger

    def _on_dev(self, task: Task) -> bool:
        """Whether any arm chooses on the items it reports."""
        return task.trains and any(arm.run.finetuning.of(task).choose_on == "dev" for arm in self.plan.arms)

    def table(self, *notes: str) -> Table:
        """All of it; `notes` go first."""
        plan = self.plan
        values = self._values()
        arms, contrasts = self._judged([self._arm(arm, values) for arm in plan.arms], values)
        matched = {row.key for arm in plan.arms if (row := self._row_of(arm))}
        others = [row for row in self.paper.rows if row.key not in matched] if self.paper else []
        references = self._references()
        blank = (None,) * len(self.settings)
        beside = self.paper and self.paper.id != next(iter(plan.experiment.reproduces), None)
        return Table(
            f"{plan.label},{self.paper.id}" if self.paper and beside else plan.label,
            f"{plan.label}: {self.paper.title}" if self.paper else plan.label,
            (
                *self.published,
                *(Column(path, label, "as printed", None, published=False) for path, label in self._labels()),
                *self.ours,
                EQUAL,
            ),
            (
                *(
                    Row(
                        row.key,
                        _of_group(row),
                        "Published only",
                        (*_published(row, self.published), *blank, *(_beside(None, c, row) for c in self.ours), None),
                    )
                    for row in others
                ),
                *arms,
                *references,
            ),
            (*notes, *self._notes(arms)),
            plan.experiment.question,
            plan.experiment.expect,
            self._provenance(),
            tuned=self.tuned,
            warnings=(*self._incomparable(), *self.warnings(), *self._no_better(arms, references)),
            claims=tuple(
                check(claim, *contrasts.get((claim.arm, claim.metric), (None, None)))
                for claim in plan.experiment.claims
            ),
        )

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before the first number: what is missing, and what is not shown."""
        counts = Counter(self.states.values())
        shown = not _results(self.measured).is_empty()  # also of runs that are not done: stages are shared
        found = []
        if (shown or counts["done"] or counts["failed"]) and counts.keys() - {"done", "diverged"}:
            told = ", ".join(f"{count} {state}" for state, count in counts.items() if state not in ("done", "diverged"))
            found.append(f"Not finished: of {len(self.states)} runs {told}. Numbers and verdicts may still change.")
        if lost := Counter(arm for (arm, _), state in self.states.items() if state == "diverged"):
            told = ", ".join(f"{arm} {count}" for arm, count in lost.items())
            found.append(f"Diverged runs are in no number, which makes their arm look better than it is: {told}.")
        planned = {run.key for run in self.plan.runs}
        if others := sum(seed < self.plan.seeds and key not in planned for key, seed in self.finished.items()):
            found.append(
                f"{others} finished {'run' if others == 1 else 'runs'} of {self.plan.name} in the store, of an older "
                "version of this experiment or with other settings, are not shown."
            )
        return tuple(found)

    def _incomparable(self) -> list[str]:
        """That whole models of ours, or any of ours beside a paper's results, are no other measurement of them."""
        if not self.paper or (self.paper.kind != "result" and len(self.plan.experiment.base) == 1):
            return []
        elsewhere = [label for label, split in self._shared_columns().items() if split == "test"]
        return [
            "Ours and what is published do not compare. Published: the systems of the paper, at their own size, data, "
            f"budget and fine-tuning. Ours: {', '.join(self._size())}."
            + (f" On test there, on dev here: {', '.join(elsewhere)}." if elsewhere else "")
        ]

    def _no_better(self, arms: Sequence[Row], references: Sequence[Row]) -> list[str]:
        """Which arms are no better than a reference on what verdicts are given on."""
        apart = {arm.label for arm in self.plan.arms if not self._same_evaluation(arm)}
        found: dict[str, list[str]] = {}
        for index, column in self.judged.items():
            known = [cell for row in references if (cell := row.cells[index])]
            for row in arms if known else ():
                if (cell := row.cells[index]) is None or not cell.samples:
                    continue
                # The reference has the baseline's pieces; other losses of other tokens have no difference either.
                compared = row.baseline or (cell.difference and not (column in WHOLE_WORDS and row.key in apart))
                if compared and not _better(cell.value, known[0].value, column):
                    found.setdefault(column.label, []).append(row.label)
        told = "; ".join(f"{label} of {', '.join(labels)}" for label, labels in found.items())
        return [f"No better than what learnt nothing (last rows), whatever the verdict: {told}."] if told else []

    def _shared_columns(self) -> dict[str, str]:
        """The paper's columns that ours stand for: their label, and the split they are on."""
        return {theirs.label: str(theirs.split) for pair in self.scores if (theirs := self._theirs(*pair))}

    def _judged(
        self, rows: Sequence[Row], values: Mapping[str, Mapping[str, Mapping[int, float]]]
    ) -> tuple[list[Row], dict[tuple[str, str], tuple[Contrast, Verdict]]]:
        """The arms' `rows` with their verdicts and the best of each column; and what was judged, by arm and column."""
        judged = self.judged
        seconds = {row.key: self._seconds(row.key) for row in rows} if judged else {}
        contrasts = {
            (row.key, column.key): Contrast(
                cell.difference,
                bool(column.higher_is_better),
                self._sesoi(column),
                seconds[row.key] + seconds[self.plan.baseline.label] or None,
                self.refusals.get(row.key),
            )
            for row in rows
            for index, column in judged.items()
            if (cell := row.cells[index]) is not None and cell.difference is not None
        }
        verdicts = dict(zip(contrasts, judge(list(contrasts.values())), strict=True))
        best = {
            column.key: tied(
                {
                    row.key: values[column.key][row.key]
                    for row in rows
                    if row.key in values[column.key] and (row.baseline or (row.key, column.key) in contrasts)
                },
                bool(column.higher_is_better),
                ALPHA / len(judged),
            )
            for column in judged.values()
            # One that is refused a verdict may be the best, or not: nobody knows.
            if not any(row.key in self.refusals and row.key in values[column.key] for row in rows)
        }
        marked = []
        for row in rows:
            cells = list(row.cells)
            for index, column in judged.items():
                if (cell := cells[index]) is not None:
                    verdict = verdicts.get((row.key, column.key))
                    cells[index] = replace(cell, verdict=verdict, best=row.key in best.get(column.key, ()))
            marked.append(replace(row, cells=tuple(cells)))
        return marked, {key: (contrast, verdicts[key]) for key, contrast in contrasts.items()}

    def _sesoi(self, column: Column) -> float | None:
        declared = self.plan.experiment.sesoi
        return declared.get(column.key, declared.get(column.unit))

    def _seconds(self, label: str) -> float:
        """What one more seed of an arm takes: the stages that no two seeds share, as one that is done took them."""
        done = next((seed for seed in range(self.plan.seeds) if self.states[label, seed] == "done"), None)
        if done is None or self.plan.seeds == 1:
            return 0.0
        shared = {stage.key for stage in self.runs[label, 0 if done else 1].stages}
        own = [stage.key for stage in self.runs[label, done].stages if stage.key not in shared]
        return sum(map(self.stages.took, own))

    def _values(self) -> dict[str, dict[str, dict[int, float]]]:
        """Column key to arm to seed to value, without the runs that diverged."""
        held_out = self.measured.filter(pl.col("stage") == "evaluate", pl.col("split") == "test")
        frames = {
            column.key: held_out.filter(pl.concat_str("task", "metric", separator=".") == column.key).with_columns(
                pl.col("value") * (100 if column.unit == "points" else 1)
            )
            for column in (*HELD_OUT, *DETECTION, *WHOLE_WORDS)
        }
        scores = chosen(self.plan, self.measured)
        pairs = self.measured.filter(pl.col("stage") == "minimal-pairs")
        for task, metric in self.scores:
            mine = pairs if isinstance(task, MinimalPairs) else scores
            of_task = mine.filter(task=task.name, metric=metric)
            frames[f"{task.name}.{metric}"] = of_task.with_columns(pl.col("value") * 100)
        if self.plan.experiment.average:
            frames["average"] = averages(scores, GLUE_AVERAGES[self.plan.experiment.average]).with_columns(
                pl.col("value") * 100
            )
        found: dict[str, dict[str, dict[int, float]]] = {}
        for key, rows in frames.items():
            arms = found.setdefault(key, {})
            for arm, seed, value in rows.select("arm", "seed", "value").iter_rows():
                if self.states[arm, seed] != "diverged":
                    arms.setdefault(arm, {})[seed] = value
        return found

    def _arm(self, arm: Arm, values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Row:
        row = self._row_of(arm)
        published = _published(row, self.published) if row else (None,) * len(self.published)
        tune = self.plan.experiment.tune
        unknown = tune.path if tune and arm in self.plan.untuned else None
        given = (None if path == unknown else Cell(found[arm.label]) for path, found in self.settings.items())
        ours = (_beside(self._cell(column, arm, values[column.key]), column, row) for column in self.ours)
        certificate = self.certificates.get(arm.label)
        cells = (*published, *given, *ours, Cell(certificate.mark) if certificate else None)
        return Row(arm.label, arm.label, "Arms", cells, arm=True, baseline=arm.baseline)

    def _row_of(self, arm: Arm) -> PaperRow | None:
        return paper_row(self.plan, arm, self.paper) if self.paper else None

    def _labels(self) -> list[tuple[str, str]]:
        """The paths of the settings, and the last part of each, or all of it where two end alike."""
        last = {path: path.rpartition(".")[2] for path in self.settings}
        counts = Counter(last.values())
        return [(path, name if counts[name] == 1 else path) for path, name in last.items()]

    def _same_origin(self, arm: Arm) -> bool:
        """Whether `arm` and the baseline were both pretrained here, or both imported."""
        return bool(arm.run.pretrained) == bool(self.plan.baseline.run.pretrained)

    def _same_unit(self, arm: Arm) -> bool:
        """Whether `arm` was trained to predict what the baseline was: tokens, whole words or spans."""
        return arm.run.objective.unit == self.plan.baseline.run.objective.unit

    def _other_units(self) -> list[str]:
        """The arms that were trained to predict other units than the baseline."""
        return [arm.label for arm in self.plan.arms if self._same_origin(arm) and not self._same_unit(arm)]

    def _same_evaluation(self, arm: Arm) -> bool:
        """Whether `arm` predicts the baseline's held-out tokens: the same packed rows, the same masks."""
        read = [
            (stage.inputs["pack"], canonical(stage.spec))
            for label in (arm.label, self.plan.baseline.label)
            if (label, 0) in self.runs  # an arm that is still being tuned has none
            for stage in self.runs[label, 0].stages
            if stage.kind == "evaluate"
        ]
        return len(set(read)) < 2

    def _cell(self, column: Column, arm: Arm, values: Mapping[str, Mapping[int, float]]) -> Cell | None:
        mine = values.get(arm.label)
        if not mine:
            return None
        samples = tuple(Sample(seed, self.runs[arm.label, seed].key, mine[seed]) for seed in sorted(mine))
        held_out = column.key.startswith(("mlm.", "generator.", "rtd."))
        comparable = self._same_origin(arm) and (not held_out or (self._same_evaluation(arm) and self._same_unit(arm)))
        difference = paired(mine, values.get(self.plan.baseline.label, {})) if comparable and not arm.baseline else None
        return Cell(aggregate(list(mine.values()), self.plan.experiment.aggregate), samples, difference)

    def _references(self) -> list[Row]:
        """What a model that learnt nothing scores, from the data of the baseline arm."""
        data = self.measured.filter(pl.col("baseline"), pl.col("stage").is_in(["pack", "task"]))
        measured = {
            (task, metric, split): (value, stage)
            for task, metric, split, value, stage in data.select("task", "metric", "split", "value", "key").iter_rows()
        }
        unigram: dict[str, Cell] = {}
        if (None, "unigram_loss", "test") in measured:
            loss, stage = measured[None, "unigram_loss", "test"]
            unigram = {"mlm.loss": Cell(loss, stage=stage), "mlm.perplexity": Cell(math.exp(loss), stage=stage)}
            unigram["generator.loss"] = unigram["mlm.loss"]
        if (None, "unigram_bits_per_byte", "test") in measured:
            bits, stage = measured[None, "unigram_bits_per_byte", "test"]
            unigram["words.bits_per_byte"] = Cell(bits, stage=stage)
        majority = {"rtd.auc": Cell(50.0)}
        for task, metric in self.scores:
            if isinstance(task, MinimalPairs):  # by chance; a constant score would tie
                majority[f"{task.name}.{metric}"] = Cell(50.0)
                continue
            value, stage = measured.get((task.name, f"majority.{metric}", "dev"), (None, None))
            if value is not None:
                majority[f"{task.name}.{metric}"] = Cell(100 * value, stage=stage)
        rows = [("unigram", "unigram frequencies", unigram), ("majority", "best constant answer", majority)]
        blank = (None,) * (len(self.published) + len(self.settings))
        found = [(key, label, [known.get(column.key) for column in self.ours]) for key, label, known in rows]
        return [Row(key, label, "Learnt nothing", (*blank, *cells, None)) for key, label, cells in found if any(cells)]

    def _verdict_notes(self, rows: Sequence[Row]) -> list[str]:
        """What was judged, how it was corrected, and how the verdicts are to be read."""
        verdicts = [cell.verdict for row in rows for cell in row.cells if cell and cell.verdict]
        size = sum(verdict.kind not in ("refused", "one seed") for verdict in verdicts)
        if not size:  # why some are refused stands at the beginning of the notes
            single = any(verdict.kind == "one seed" for verdict in verdicts)
            return ["One seed decides nothing, so there is no verdict."] if single else []
        judged = [column for column in self.ours if column.judged]
        sesoi = {column.label: (self._sesoi(column), column.unit) for column in judged}
        told = [
            f"{label} {value:g} {unit.removesuffix('s') if value == 1 else unit}"
            for label, (value, unit) in sesoi.items()
            if value is not None
        ]
        lacking = [label for label, (value, _) in sesoi.items() if value is None]
        notes = [
            f"Verdicts are corrected for all contrasts of this table together ({size}: its arms on "
            f"{', '.join(column.label for column in judged)}; Holm, 5 %, paired t tests). Other columns get none. MDE: "
            "the least true difference that as many seeds would find with 80 % power after correction. Bold: every "
            "arm that may be the best of its column, none being significantly better; where all are bold, nothing "
            "tells them apart." + (" None is bold beside an arm that is refused a verdict." if self.refusals else "")
        ]
        if told:
            notes.append(
                f"Smallest effects of interest (SESOI), declared in the experiment: {', '.join(told)}. Equivalent: "
                "smaller than that either way (two one-sided tests, Holm). +k seeds: how many more would find an "
                "effect of that size with 80 % power; hours of this arm and the baseline, as measured, on one worker."
            )
        if lacking:
            notes.append(
                f"No smallest effect of interest is declared (`sesoi`) for {', '.join(lacking)}: nothing can be called "
                "equivalent there, and no number of seeds enough."
            )
        return notes

    def _notes(self, rows: Sequence[Row]) -> list[str]:
        plan, experiment = self.plan, self.plan.experiment
        notes = [
            f"Ours: {'; '.join(self._size())}.",
            self._count(),
            f"A cell of ours is the {experiment.aggregate} over n seeds. Below it the difference to "
            f"{plan.baseline.label}: the mean of the differences paired by seed, with its 95 % t interval "
            "(df = pairs - 1; none for one pair), each comparison by itself, not corrected for their number.",
            *self._verdict_notes(rows),
        ]
        if any(column.beside for column in self.ours):
            notes.append(
                "Where the paper has the column too, its value stands last in the cell, marked published; differences "
                "and verdicts are between our arms alone."
            )
        keys = {column.key for column in self.ours}
        if "mlm.loss" in keys:
            notes.append("MLM loss: nats a masked token on held-out documents (test split).")
        if "words.word_accuracy" in keys:
            notes += self._words()
        if "rtd.auc" in keys:
            notes += self._detection()
        notes += self._imports()
        notes += filter(None, [self._masks(), self._padding(), self._sentences()])
        notes += self._tunings()
        apart = [arm.label for arm in plan.arms if not self._same_evaluation(arm)]
        if apart and keys & {"mlm.loss", "generator.loss"}:
            notes.append(
                f"Held-out tokens differ between {plan.baseline.label} and {', '.join(apart)}: nats and perplexities "
                "of different tokens do not compare, so no difference is shown. The unigram row is "
                f"{plan.baseline.label}'s."
            )
        if others := self._other_units():
            notes.append(
                f"{', '.join(others)} and {plan.baseline.label} were trained to predict other units, and each is best "
                "at its own. MLM loss asks for single tokens, also inside words, where training on whole words never "
                "puts a mask: no difference is shown. Words masked whole favour the units that are made of them."
            )
        if lost := self._lost_tunings():
            notes.append(lost)
        if self.certificates:
            notes.append(
                "All else equal: ✓ only the factor differs from the baseline, ~ what moved with it, ✗ what differs "
                f"besides: `paribus compare {plan.name}:ARM {plan.baseline.label}{plan.options}` shows all of it."
            )
        if len(experiment.base) > 1:
            notes.append(
                "Bases are whole models: a difference between two is of everything in which they differ, and of no "
                "factor by itself."
            )
        notes += [self._pairs(task) for task in self.tasks if isinstance(task, MinimalPairs)]
        if any(task.trains for task in self.tasks):
            notes += self._protocols()
        if self.paper:
            notes.append(
                f"Published values are the paper's own, at its own size, data and budget: {_cite(self.paper)}. "
                f"{self.paper.protocol}"
            )
            notes += self._coverage(self.paper)
        return notes

    def _size(self) -> list[str]:
        """How large ours are: scale, base, corpus, budget, parameters."""
        plan = self.plan
        parameters = self.measured.filter(pl.col("metric") == "parameters")["value"].unique().sort().to_list()
        trained = [arm for arm in plan.arms if not arm.run.pretrained]
        tokens = sorted({arm.run.budget.steps * arm.run.budget.batch_tokens for arm in trained})
        updates = sorted({arm.run.budget.steps for arm in trained})
        corpora = sorted({arm.run.corpus.kind for arm in plan.arms})
        bases = plan.experiment.bases_for(plan.scale)
        return [
            f"scale {plan.scale}",
            f"base {' or '.join(bases.values())}",
            f"corpus {', '.join(corpora)}",
            *([f"{' or '.join(f'{count:,}' for count in tokens)} tokens a run"] if tokens else []),
            *([f"{' or '.join(f'{count:,}' for count in updates)} updates"] if updates else []),
            *([f"{' or '.join(f'{count:,.0f}' for count in parameters)} parameters"] if parameters else []),
            *(f"{path}={value}" for path, value in plan.overrides.items()),
        ]

    def _coverage(self, paper: PaperTable) -> list[str]:
        """Which row of the paper each arm stands beside, and which rows and columns have nothing of ours."""
        rows = {arm.label: row for arm in self.plan.arms if (row := self._row_of(arm))}
        beside = [f"{arm}: {_of_group(row)}" for arm, row in rows.items() if _plain(arm) != _plain(row.label)]
        mine, name = self._shared_columns(), self.plan.experiment_name
        empty = [column.label for column in paper.columns if column.task and column.label not in mine]
        return [
            *([f"The paper's row beside an arm: {'; '.join(beside)}."] if beside else []),
            *([f"Columns of the paper that no task of {name} measures: {', '.join(empty)}."] if empty else []),
            *filter(None, [_lacking(paper)]),
        ]

    def _pairs(self, task: MinimalPairs) -> str:
        """How a task of minimal pairs is scored, and what to doubt about it."""
        rows = self.measured.filter(stage="minimal-pairs", task=task.name)
        medians = rows.group_by("arm", "metric", maintain_order=True).agg(pl.col("value").median())
        ties = [f"{arm} {100 * value:.2f} %" for arm, _, value in medians.filter(metric="ties").iter_rows() if value]
        out = [f"{arm} {value:.0f}" for arm, _, value in medians.filter(metric="too_long").iter_rows() if value]
        return (
            f"{task.name} x 100: the share of pairs of which the acceptable sentence scores higher, nothing trained "
            f"({_by_arm({arm.label: _scoring(arm) for arm in self.plan.arms})}), mean over "
            f"{'phenomena' if task.metrics[0] == 'phenomenon-accuracy' else 'paradigms'}. Chance is 50; a tie is wrong"
            + (f" (median over seeds: {', '.join(ties)})." if ties else ".")
            + (f" Pairs left out, longer than a row of pretraining: {', '.join(out)}." if out else "")
        )

    def _protocols(self) -> list[str]:
        """How task scores came about: what chose, what was trained, and where the reported items themselves chose."""
        plan = self.plan
        trained = [task for task in self.tasks if task.trains]
        told: dict[str, list[str]] = {}
        for task in trained:
            text = _by_arm({arm.label: _recipe(arm.run.finetuning, task) for arm in plan.arms})
            told.setdefault(text, []).append(task.name)
        each = [(text if len(told) == 1 else f"{', '.join(tasks)}: {text}") for text, tasks in told.items()]
        named = plan.experiment.protocol_for(plan.scale)
        protocol = f" (protocol {named})" if named else ""
        marked = sum(map(self._on_dev, trained))
        held_out = ", on items held out of train" if marked < len(trained) else ""
        several = {task.name: task.metrics[0] for task, metric in self.scores if metric != task.metrics[0]}
        of_several = f" (of several: {', '.join(f'{task} {metric}' for task, metric in several.items())})"
        notes = [
            "Task scores are x 100, on dev. Of its grid each run takes the point that is best over its restarts by the "
            f"metric shown{of_several if several else ''}{held_out}{protocol}. "
            f"{'; '.join(text[0].upper() + text[1:] for text in each)}."
        ]
        if plan.experiment.average:
            parts = ", ".join(" and ".join(names) for names in GLUE_AVERAGES[plan.experiment.average])
            notes.append(f"{plan.experiment.average}: the mean of {parts}.")
        if marked:
            notes.append(
                "† Chosen on dev, the items that are reported, as papers do, and not on items held out of train: these "
                "scores are too high by what the choice gains."
            )
        return notes

    def _imports(self) -> list[str]:
        """Which arms were not pretrained here, where they are from, and that they show nothing about a factor."""
        imported = [(arm.label, arm.run.pretrained) for arm in self.plan.arms if arm.run.pretrained]
        notes = [
            f"{label} was imported, not pretrained here: encoder and tokenizer of {Path(source.path).name}, sha256 "
            f"{(source.sha256 or '')[:16]}. Its data, budget and seeds are its makers'; only fine-tuning varies with "
            "our seeds, held-out losses do not."
            for label, source in imported
        ]
        evaluated = set(self.measured.filter(pl.col("stage") == "evaluate")["arm"])
        done = {arm for (arm, _), state in self.states.items() if state == "done"}
        if headless := [label for label, _ in imported if label in done - evaluated]:
            notes.append(
                f"No held-out loss and no score of pairs of {', '.join(headless)}: it came without a vocabulary head "
                "that fits."
            )
        if 0 < len(imported) < len(self.plan.arms):
            notes.append("Imported and pretrained arms differ in everything, so no difference between them is shown.")
        return notes

    def _lost_tunings(self) -> str:
        """How many fine-tunings diverged, by arm and task."""
        lost = self.measured.filter(pl.col("stage") == "finetune", pl.col("split") == "dev", pl.col("value").is_nan())
        counts = lost.group_by("arm", "task", maintain_order=True).len().iter_rows()
        each = [f"{arm}, {task}: {count}" for arm, task, count in counts]
        return f"Fine-tunings that diverged, whose rate is not chosen: {'; '.join(each)}." if each else ""

    def _words(self) -> list[str]:
        """What masked words are, and where arms differ in their vocabulary what their pieces are like."""
        names = ["tokens_a_word", "bytes_a_token", "unknown_share", "unigram_bits_per_byte"]
        asked = pl.col("split").eq("test") & pl.col("metric").is_in(names)
        rows = self.measured.filter(asked).select("arm", "metric", "value").iter_rows()
        values = {(arm, metric): value for arm, metric, value in rows}
        arms = [arm.label for arm in self.plan.arms if all((arm.label, name) in values for name in names)]
        found = ((arm, *(values[arm, name] for name in names)) for arm in arms)
        each = (
            f"{arm} {a:.2f} tokens a word, {b:.2f} bytes a token, {100 * c:.2f} % [UNK], unigram {d:.3f} bits a byte"
            for arm, a, b, c, d in found
        )
        corpora = len({stage.key for stage in self.plan.stages() if stage.kind == "corpus"})
        same = "the same words for every arm" if corpora == 1 else "of each arm's own corpus"
        masked = (
            f"Words of held-out documents are masked whole, {same} (test split). Bits a byte: the cost of their pieces "
            "over their bytes in the text; a byte that [UNK] hides costs 8 bits more. Whole words right: the share of "
            "which every piece is right."
        )
        if self.vocabularies == 1:
            return [masked]
        return [
            "Arms differ in their vocabulary, so nats and perplexities of tokens do not compare.",
            f"{masked} What a model learnt is its distance to the unigram frequencies of its own pieces; the unigram "
            "row has the baseline's.",
            *([f"On test documents: {'; '.join(each)}. An update sees equal tokens, not bytes."] if arms else []),
        ]

    def _masks(self) -> str:
        """How many masks a row has in each arm, where arms differ in that."""
        asked = pl.col("stage").eq("pretrain") & pl.col("metric").is_in(["masks_a_row", "epochs"])
        found = self.measured.filter(asked).group_by("arm", "metric").agg(pl.col("value").median())
        values = {(arm, metric): value for arm, metric, value in found.iter_rows()}
        arms = [arm.label for arm in self.plan.arms if (arm.label, "masks_a_row") in values]
        if len({values[arm, "masks_a_row"] for arm in arms}) < 2:
            return ""
        each = (f"{arm} {values[arm, 'masks_a_row']:.0f} in {values[arm, 'epochs']:.1f} passes" for arm in arms)
        return f"Masks a train row: {', '.join(each)}."

    def _tunings(self) -> list[str]:
        """How what is tuned was tuned, what each arm chose, and what to doubt about it."""
        if not self.tuned:
            return []
        tune = self.plan.tunings[0].tune
        notes = [
            f"{tune.path} is each arm's own best of {tune.trials} trials by loss on validation documents, at seed "
            f"{tune.seed}, which no cell reports (pruner: {tune.pruner.kind})."
        ]
        notes += [account.sentence for account in self.tuned]
        if reason := unequal(self.plan.tunings):
            notes.append(reason[0].upper() + reason[1:] + ".")
        return notes

    def _detection(self) -> list[str]:
        """How columns of replaced-token detection are to be read, and how each arm's parameters moved."""
        joint = {arm.label: arm.run.objective.joint for arm in self.plan.arms if isinstance(arm.run.objective, Rtd)}
        steps = (f"{arm} {'one on the joint loss' if joint[arm] else 'generator, then discriminator'}" for arm in joint)
        return [
            "Generator MLM loss: nats a masked token on held-out documents (test split). It measures the generator "
            "only; what is fine-tuned is the discriminator.",
            "Replaced precision and recall (at probability 1/2) and AUC: how well the discriminator finds, among all "
            "tokens of those documents, the samples of its own run's generator. A better generator makes that harder: "
            "compare arms by tasks.",
            f"Optimizer steps an update: {'; '.join(steps)}.",
        ]

    def _padding(self) -> str:
        """The share of padding in each arm, where arms differ in that."""
        asked = pl.col("stage").eq("pack") & pl.col("metric").eq("padding_share") & pl.col("split").eq("train")
        shares = dict(self.measured.filter(asked).group_by("arm").agg(pl.col("value").first()).iter_rows())
        if len(set(shares.values())) < 2:
            return ""
        each = (f"{arm.label} {100 * shares[arm.label]:.1f} %" for arm in self.plan.arms if arm.label in shares)
        return f"Padding of the train rows, no part of the tokens a run: {', '.join(each)}."

    def _sentences(self) -> str:
        """How well each arm's sentence objective was learnt, beside what a constant answer is worth."""
        rows = self.measured.filter(pl.col("stage") == "evaluate", pl.col("split") == "test")
        told, most = (
            dict(rows.filter(pl.col("metric") == name).group_by("arm").agg(pl.col("value").median()).iter_rows())
            for name in ("sentence_accuracy", "majority.sentence_accuracy")
        )
        each = (
            f"{arm.label} {100 * told[arm.label]:.1f} % right (a constant answer {100 * most[arm.label]:.1f} %)"
            for arm in self.plan.arms
            if arm.label in told
        )
        return f"Sentence objective on held-out rows, median over seeds: {', '.join(each)}." if told else ""

    def _count(self) -> str:
        """How many runs are done, and for each arm what became of the others."""
        total, done = len(self.states), sum(state == "done" for state in self.states.values())
        others = Counter((arm, state) for (arm, _), state in self.states.items() if state != "done")
        rest = "".join(f"; {arm}: {count} {state}" for (arm, state), count in others.items())
        return f"{done} of {total} runs are done (seeds asked: {self.plan.seeds}){rest}."

    def _provenance(self) -> dict[str, Any]:
        return {
            "experiment": self.plan.experiment_name,
            "scale": self.plan.scale,
            "overrides": dict(self.plan.overrides),
            "seeds": self.plan.seeds,
            "paper": self.paper.id if self.paper else None,
            "runs": [
                {
                    "run": run.key,
                    "arm": run.arm.label,
                    "seed": run.seed,
                    "state": self.states[run.arm.label, run.seed],
                    "stages": [stage.key for stage in run.stages],
                }
                for run in self.plan.runs
            ],
        }


def _by_arm(told: Mapping[str, str]) -> str:
    """What is said of each arm; once where it is the same of all."""
    same = len(set(told.values())) == 1
    return next(iter(told.values())) if same else "; ".join(f"{arm}: {each}" for arm, each in told.items())


def _scoring(arm: Arm) -> str:
    """An arm's score of a sentence in words."""
    if isinstance(arm.run.objective, Rtd):
        return "sum of log P(original)"
    return f"summed pseudo-log-likelihood, {arm.run.evaluation.minimal_pairs.score}"


def _recipe(finetuning: FineTuning, task: Task) -> str:
    """How a task is fine-tuned, in words."""
    recipe = finetuning.of(task)
    sizes, epochs, rates = (
        " or ".join(f"{value:g}" for value in values)
        for values in (recipe.batch_items, recipe.epochs, recipe.learning_rates)
    )
    parts = [
        f"learning rate {rates}",
        f"batch {sizes}",
        f"epochs {epochs}" + (", the best kept" if recipe.keep == "best" else ""),
        f"{recipe.aggregate} of {recipe.seeds} restarts" if recipe.seeds > 1 else "1 restart",
    ]
    if recipe.train_items is not None:
        parts.append(f"at most {recipe.train_items:,} train items")
    if recipe.frozen is not None:
        parts.append(f"encoder frozen, layers {recipe.frozen.layers}")
    if first := finetuning.start_from.get(task.name):
        parts.append(f"from the {first} model")
    return ", ".join(parts)


def settings(arms: Sequence[Arm]) -> dict[str, dict[str, int | float]]:
    """The numbers that every arm has and in which they differ, by path and arm: the budget and its steps first."""
    flat = {}
    for arm in arms:
        budget = {**arm.run.budget.model_dump(), "steps": arm.run.budget.steps}
        others = arm.run.model_dump(exclude={"evaluation", "budget"})
        flat[arm.label] = flatten({"budget": budget, **others})
    found = {}
    for path in flat[arms[0].label]:
        values = {label: numbers.get(path) for label, numbers in flat.items()}
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        if len(numbers) == len(flat) and len(set(numbers.values())) > 1:
            found[path] = numbers
    return found


def paper_row(plan: Plan, arm: Arm, paper: PaperTable) -> PaperRow | None:
    """The row of `arm`: as the experiment says, or the one that is called as the arm or the one level it departs in."""
    levels = [level for factor, level in arm.levels.items() if arm.baseline or level != plan.baseline.levels[factor]]
    said = plan.experiment.row_of(paper.id, arm.label, plan.scale)
    if said is None:
        return None
    names = [said, *(levels if arm.baseline or len(levels) == 1 else [])]
    rows = {row.key: row for row in paper.systems}
    return next((rows[key] for name in names if (key := name.lower().replace("-", "_")) in rows), None)


def paper_column(task: Task, metric: Metric, paper: PaperTable) -> PaperColumn | None:
    """The paper's column of a metric of `task`: on dev, else on test, else a correlation that it does not name."""
    name = TASKS.get(task.name, task.name.replace("-", "_"))
    wanted = [(METRICS.get(metric, metric), "dev"), (METRICS.get(metric, metric), "test")]
    if metric == "pearson":
        wanted.append(("corr", "dev"))
    columns = {(column.metric, column.split): column for column in reversed(paper.columns) if column.task == name}
    return next((columns[key] for key in wanted if key in columns), None)


def _better(one: Value, other: Value, column: Column) -> bool:
    """Whether a number of a column is better than another, by more than the rounding of a mean."""
    assert isinstance(one, int | float) and isinstance(other, int | float)
    ahead = one > other if column.higher_is_better else one < other
    return ahead and not math.isclose(one, other, abs_tol=1e-9)


def _plain(label: str) -> str:
    """The letters and digits of a label."""
    return "".join(filter(str.isalnum, label)).lower()


def _lacking(paper: PaperTable) -> str:
    """Which rows of the paper no arm can stand for yet, and what it would take."""
    by_reason: dict[str, list[str]] = {}
    for row in paper.rows:
        if row.key in paper.lacking:
            by_reason.setdefault(paper.lacking[row.key], []).append(row.key)
    each = (f"{', '.join(rows)} ({reason})" for reason, rows in by_reason.items())
    return f"Rows without an arm of ours: {'; '.join(each)}." if by_reason else ""


def _published_columns(paper: PaperTable) -> list[Column]:
    return [
        Column(column.key, _printed_label(column), "as printed", column.higher_is_better, True, split=column.split)
        for column in paper.columns
    ]


def _printed_label(column: PaperColumn) -> str:
    """A column's label with its split where that is test and the label does not say it: ours are on dev."""
    untold = column.split == "test" and "test" not in column.label.lower()
    return f"{column.label} (test)" if untold else column.label


def _comparable(column: PaperColumn) -> bool:
    """Whether a score of ours may stand in one cell with the paper's: of dev, by a metric that the paper names."""
    return column.split == "dev" and column.metric != "corr"


def _of_group(row: PaperRow) -> str:
    """A row's label with its group in the paper: two groups can hold rows that are called alike."""
    return f"{row.label} ({row.group})" if row.group else row.label


def _published(row: PaperRow, columns: Sequence[Column]) -> tuple[Cell | None, ...]:
    return tuple(None if (value := row.values[column.key]) is None else Cell(value) for column in columns)


def _beside(ours: Cell | None, column: Column, row: PaperRow | None) -> Cell | None:
    """A cell of ours with what the paper has there."""
    value = row.values[column.beside] if row and column.beside else None
    return ours if value is None else replace(ours or Cell(None), published=value)


def _cite(paper: PaperTable) -> str:
    year = f" {paper.paper.year}" if paper.paper.year else ""
    return f"{paper.paper.authors}{year}, {paper.paper.title}{paper.paper.place}"
