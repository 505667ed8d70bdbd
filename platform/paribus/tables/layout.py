"""The columns of an experiment's table, and which of its arms compare on what."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import polars as pl

from paribus.plan.arms import Arm
from paribus.plan.plan import Plan, PlannedRun, flatten
from paribus.plan.stages import TaskTuning
from paribus.spec.base import canonical
from paribus.spec.data import Corpus
from paribus.spec.objective import Rtd
from paribus.spec.table import Column as PaperColumn
from paribus.spec.table import PaperTable
from paribus.spec.table import Row as PaperRow
from paribus.spec.task import Metric, MinimalPairs, Task
from paribus.store.index import Finished
from paribus.tables.certificate import Certificate
from paribus.tables.published import comparable, paper_column, paper_row, published_columns
from paribus.tables.table import Column
from paribus.tables.tuning import tuned

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
EQUAL = Column("equal", "all else equal", "as printed", None, published=False)


class Layout:
    """What the table of an experiment shows, and which of its arms compare on what."""

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
            *(WHOLE_WORDS if predicts and (self.vocabularies > 1 or self.other_units()) else ()),
            *(DETECTION if Rtd in objectives else ()),
            *(
                Column(
                    f"{task.name}.{metric}",
                    self._label(task, metric),
                    "points",
                    True,
                    published=False,
                    judged=metric == task.metrics[0],
                    beside=theirs.key if (theirs := self.theirs(task, metric)) and comparable(theirs) else None,
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
        columns = published_columns(paper) if paper else []
        self.published = [column for column in columns if column.key not in shared]
        self.places = dict(enumerate(self.ours, len(self.published) + len(self.settings)))  # ours, by place in a row
        self.judged = {index: column for index, column in self.places.items() if column.judged}

    def _scores(self) -> list[tuple[Task, Metric]]:
        """The task and metric of each column of scores: a task's first metric, which gets the verdict, and those that
        the paper prints; in the paper's order, then those that it does not have.
        """
        found = [
            (task, metric)
            for task in self.tasks
            for metric in task.metrics
            if metric == task.metrics[0] or self.theirs(task, metric)
        ]
        columns = list(self.paper.columns) if self.paper else []
        places = {pair: columns.index(theirs) for pair in found if (theirs := self.theirs(*pair))}
        return sorted(found, key=lambda pair: places.get(pair, len(columns)))

    def theirs(self, task: Task, metric: Metric) -> PaperColumn | None:
        """The paper's column of a metric, if there is a paper and it has one."""
        return paper_column(task, metric, self.paper) if self.paper else None

    def _label(self, task: Task, metric: Metric) -> str:
        """What a column of scores is called: as in the paper, if that has it. A dagger: chosen on what it reports."""
        theirs, dagger = self.theirs(task, metric), " †" if self.on_dev(task) else ""
        if theirs is None or theirs.metric == "corr":
            return f"{task.name} {metric}{dagger}"
        return (f"{theirs.label.removesuffix(' (test)')} (dev)" if theirs.split == "test" else theirs.label) + dagger

    def on_dev(self, task: Task) -> bool:
        """Whether any arm chooses on the items it reports."""
        return task.trains and any(arm.run.finetuning.of(task).choose_on == "dev" for arm in self.plan.arms)

    def sesoi(self, column: Column) -> float | None:
        """The smallest effect of interest that is declared for a column, in its unit."""
        declared = self.plan.experiment.sesoi
        return declared.get(column.key, declared.get(column.unit))

    def shared_columns(self) -> dict[str, str]:
        """The paper's columns that ours stand for: their label, and the split they are on."""
        return {theirs.label: str(theirs.split) for pair in self.scores if (theirs := self.theirs(*pair))}

    def row_of(self, arm: Arm) -> PaperRow | None:
        """The paper's row beside an arm, if there is one."""
        return paper_row(self.plan, arm, self.paper) if self.paper else None

    def same_origin(self, arm: Arm) -> bool:
        """Whether `arm` and the baseline were both pretrained here, or both imported."""
        return bool(arm.run.pretrained) == bool(self.plan.baseline.run.pretrained)

    def same_unit(self, arm: Arm) -> bool:
        """Whether `arm` was trained to predict what the baseline was: tokens, whole words or spans."""
        return arm.run.objective.unit == self.plan.baseline.run.objective.unit

    def other_units(self) -> list[str]:
        """The arms that were trained to predict other units than the baseline."""
        return [arm.label for arm in self.plan.arms if self.same_origin(arm) and not self.same_unit(arm)]

    def same_evaluation(self, arm: Arm) -> bool:
        """Whether `arm` predicts the baseline's held-out tokens: the same packed rows, the same masks."""
        read = [
            (stage.inputs["pack"], canonical(stage.spec))
            for run in self._first(arm)
            for stage in run.stages
            if stage.kind == "evaluate"
        ]
        return len(set(read)) < 2

    def same_marks(self, arm: Arm) -> bool:
        """Whether `arm` and the baseline have both learnt what [MASK] is, or neither: held-out tokens are hidden by
        it."""
        return bool(arm.run.objective.replacement.mask) == bool(self.plan.baseline.run.objective.replacement.mask)

    def same_words(self, arm: Arm) -> bool:
        """Whether `arm` predicts the baseline's held-out words: the same documents and masks, in the same case."""
        read = [
            (run.stage("corpus").key, canonical(run.stage("evaluate").spec), run.arm.run.tokenizer.lowercase)
            for run in self._first(arm)
        ]
        return len(set(read)) < 2

    def same_pairs(self, arm: Arm, task: MinimalPairs) -> bool:
        """Whether `arm` is scored on the baseline's pairs. One that is longer in tokens than a row is left out."""
        runs = self._first(arm)
        if len({run.arm.run.evaluation.minimal_pairs.per_paradigm for run in runs}) > 1:
            return False
        if len({(run.stage("vocabulary").key, run.arm.run.packing.length) for run in runs}) < 2:
            return True
        labels = [run.arm.label for run in runs]
        left_out = self.measured.filter(pl.col("arm").is_in(labels), task=task.name, metric="too_long")
        return not left_out["value"].sum()

    def _first(self, arm: Arm) -> list[PlannedRun]:
        """The first run of an arm and of the baseline, where they have any: one that is still being tuned has none."""
        labels = (arm.label, self.plan.baseline.label)
        return [self.runs[label, 0] for label in labels if (label, 0) in self.runs]

    def same_items(self, column: Column, arm: Arm) -> bool:
        """Whether `arm` and the baseline were measured on the same items in a column: what is gained on other tokens,
        words or pairs is none of the arm's."""
        if column.key.startswith(("mlm.", "generator.", "rtd.")):
            return self.same_evaluation(arm) and self.same_unit(arm) and self.same_marks(arm)
        if column.key.startswith("words."):
            return self.same_words(arm) and self.same_marks(arm)
        task = next((task for task, metric in self.scores if f"{task.name}.{metric}" == column.key), None)
        return not isinstance(task, MinimalPairs) or (self.same_pairs(arm, task) and self.same_marks(arm))

    def lost_seeds(self, column: Column, values: Mapping[str, Mapping[int, float]], arm: str) -> str | None:
        """Why nothing may be said of an arm in a column: seeds that are done have no value, their fine-tunings
        diverged. Who is left would be compared with other seeds, and be the better half."""
        labels = (arm, self.plan.baseline.label)
        done = {seed for seed in range(self.plan.seeds) if all(self.states[label, seed] == "done" for label in labels)}
        # What else of a run is finished does not matter.
        scores = [(task, f"{task.name}.{metric}") for task, metric in self.scores if task.trains]
        tasks = {task.name for task, key in scores if column.key in (key, "average")}
        ended = {label: done | self._tuned(label, tasks) for label in labels}
        lost = {label: len(ended[label] - values.get(label, {}).keys()) for label in labels}
        told = ", ".join(f"{label} {count}" for label, count in lost.items() if count)
        return f"fine-tunings of seeds that are done diverged: {told}" if told else None

    def _tuned(self, label: str, tasks: Collection[str]) -> set[int]:
        """The seeds of an arm of which every fine-tuning on `tasks` has ended; none where there are no tasks."""
        return set.intersection(*(self._tunings.get((label, task), set()) for task in tasks)) if tasks else set()

    @cached_property
    def _tunings(self) -> dict[tuple[str, str], set[int]]:
        """Arm and task to the seeds of which every fine-tuning has ended."""
        ended: dict[tuple[str, str, int], bool] = {}
        for (label, seed), run in self.runs.items():
            for stage in run.stages:
                if isinstance(stage.spec, TaskTuning):
                    at = label, stage.spec.task.name, seed
                    ended[at] = ended.get(at, True) and stage.key in self.stages.records
        found: dict[tuple[str, str], set[int]] = {}
        for (label, task, seed), all_ in ended.items():
            if all_:
                found.setdefault((label, task), set()).add(seed)
        return found

    def size(self) -> list[str]:
        """How large ours are: scale, base, corpus, budget, parameters."""
        plan = self.plan
        parameters = self.measured.filter(pl.col("metric") == "parameters")["value"].unique().sort().to_list()
        trained = [arm for arm in plan.arms if not arm.run.pretrained]
        tokens = sorted({arm.run.budget.steps * arm.run.budget.batch_tokens for arm in trained})
        updates = sorted({arm.run.budget.steps for arm in trained})
        corpora = sorted({_named(arm.run.corpus) for arm in plan.arms})
        bases = plan.experiment.bases_for(plan.scale)
        given = {**plan.experiment.set, **plan.experiment.set_at.get(plan.scale, {}), **plan.overrides}
        return [
            f"scale {plan.scale}",
            f"base {' or '.join(bases.values())}",
            f"corpus {', '.join(corpora)}",
            *([f"{' or '.join(f'{count:,}' for count in tokens)} tokens a run"] if tokens else []),
            *([f"{' or '.join(f'{count:,}' for count in updates)} updates"] if updates else []),
            *([f"{' or '.join(f'{count:,.0f}' for count in parameters)} parameters"] if parameters else []),
            *(f"{path}={_short(value)}" for path, value in given.items()),
        ]


def _named(corpus: Corpus) -> str:
    """A corpus by its kind, and where it has files by them and their checksum."""
    checksum = getattr(corpus, "sha256", None) if hasattr(corpus, "paths") else None
    return " ".join([corpus.kind, *getattr(corpus, "paths", ()), *([f"(sha256 {checksum[:8]})"] if checksum else [])])


def _short(value: Any) -> str:
    """A value that was set; of several fields their kind, or how many they are."""
    if not isinstance(value, Mapping):
        return str(value)
    return str(value.get("kind", f"({len(value)} fields)"))


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
