"""From a plan and what is finished of it to its table."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from paribus.errors import DataError, SpecError
from paribus.jobs.runs import plan_asked, seeds_asked
from paribus.plan.arms import Arm
from paribus.plan.plan import Plan, flatten
from paribus.project import Project
from paribus.spec.experiment import GLUE_AVERAGES, Claim
from paribus.spec.load import suggest
from paribus.spec.table import PaperTable, Value
from paribus.spec.task import MinimalPairs
from paribus.store.declared import changed
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables.certificate import Certificate, certificates, count_costs, foot
from paribus.tables.frame import averages, chosen, frame, states
from paribus.tables.layout import DETECTION, EQUAL, HELD_OUT, WHOLE_WORDS, Layout
from paribus.tables.notes import notes
from paribus.tables.published import of_group, paper_table, published_cells, unreproduced, with_published
from paribus.tables.stats import ALPHA, aggregate, paired, tied
from paribus.tables.table import Cell, Column, Row, Sample, Table
from paribus.tables.verdict import Checked, Contrast, Verdict, check, judge


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
        planned = plan_asked(project, store, experiment, scale, seeds, overrides or {})
        made = (finished or {}).get(planned.name, {})
        count_costs(planned, project, store)
        return experiment_table(planned, store, paper, failed, allow, made)

    if name in project.experiments.paths:
        asked_by = f"{project.experiments.path(name)}: reproduces"
        return [table(name, project.paper(project.experiments.get(name), asked_by))]
    if name not in project.tables.paths:
        known = [*project.experiments.paths, *project.tables.paths]
        hint = suggest(name, known) or "; `paribus list experiments` and `paribus list tables` show them"
        raise SpecError(f"no experiment or paper table is called {name!r}{hint}{project.alone}")
    paper, found, without = project.tables.get(name), [], []
    claims: list[Checked] = []  # of those without runs: who asks whether claims hold shall hear of them too
    for experiment in reproducing(project, name):
        try:
            made = table(experiment, paper)
        except DataError as error:  # the data of a paper's tasks are the user's: without them the paper's own is shown
            # The cause: what is missing, without who asked for it, which is the experiment that the note names.
            without.append(f"There are no runs of {experiment} here: {error.__cause__ or error}")
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
    stages = stages or Finished(store, plan.known)
    measured, found = frame(plan, stages), states(plan, stages, failed)
    untouched = _results(measured).is_empty()
    tried = any(tuning.done for tuning in plan.tunings)
    if untouched and not tried and set(found.values()) <= {"missing", "untuned"}:
        note = f"There are no runs of {plan.name} yet; this makes them: `paribus run {plan.command}`"
        layout = Layout(plan, stages, measured, found, paper, finished=finished)
        return replace(paper_table(paper, note), warnings=_warnings(layout)) if paper else _table(layout, note)
    compared = certificates(plan, stages, allow) if compared is None else compared
    layout = Layout(plan, stages, measured, found, paper, compared, finished)
    return _table(layout, *foot(layout.certificates, allow))


def _results(measured: pl.DataFrame) -> pl.DataFrame:
    """What was measured of models."""
    return measured.filter(pl.col("stage").is_in(["evaluate", "finetune"]))


def _table(layout: Layout, *first: str) -> Table:
    """All of it; the notes that go `first`, then its own."""
    plan = layout.plan
    values = _values(layout)
    arms, contrasts = _judged(layout, [_arm(layout, arm, values) for arm in plan.arms], values)
    matched = {row.key for arm in plan.arms if (row := layout.row_of(arm))}
    others = [row for row in layout.paper.rows if row.key not in matched] if layout.paper else []
    references = _references(layout)
    blank = (None,) * len(layout.settings)
    beside = layout.paper and layout.paper.id != next(iter(plan.experiment.reproduces), None)
    return Table(
        f"{plan.label},{layout.paper.id}" if layout.paper and beside else plan.label,
        f"{plan.label}: {layout.paper.title}" if layout.paper else plan.label,
        (
            *layout.published,
            *(Column(path, label, "as printed", None, published=False) for path, label in _labels(layout)),
            *layout.ours,
            EQUAL,
        ),
        (
            *(
                Row(
                    row.key,
                    of_group(row),
                    "Published only",
                    (
                        *published_cells(row, layout.published),
                        *blank,
                        *(with_published(None, c, row) for c in layout.ours),
                        None,
                    ),
                )
                for row in others
            ),
            *arms,
            *references,
        ),
        (*first, *notes(layout, arms)),
        plan.experiment.question,
        plan.experiment.expect,
        _provenance(layout),
        tuned=layout.tuned,
        warnings=(*_incomparable(layout), *_warnings(layout), *_no_better(layout, arms, references)),
        claims=tuple(
            _checked(layout, claim, *contrasts.get((claim.arm, claim.metric), (None, None)))
            for claim in plan.experiment.claims
        ),
    )


def _checked(layout: Layout, claim: Claim, contrast: Contrast | None, verdict: Verdict | None) -> Checked:
    """A claim about as many seeds as the experiment asks for: of fewer, those could be taken that bear it out."""
    labels, ended = (claim.arm, layout.plan.baseline.label), ("done", "diverged")
    done = sum(all(layout.states[label, seed] in ended for label in labels) for seed in range(layout.plan.seeds))
    if done < layout.plan.experiment.seeds:
        return Checked(claim, "undecided", f"{done} of {layout.plan.experiment.seeds} seeds have ended")
    return check(claim, contrast, verdict)


def _warnings(layout: Layout) -> tuple[str, ...]:
    """What a reader must know before the first number: what is missing, and what is not shown."""
    counts = Counter(layout.states.values())
    shown = not _results(layout.measured).is_empty()  # also of runs that are not done: stages are shared
    found = []
    if edited := changed(layout.stages.store, layout.plan):
        found.append(f"Edited after its runs had begun: {'; '.join(edited)}.")
    if (shown or counts["done"] or counts["failed"]) and counts.keys() - {"done", "diverged"}:
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if state not in ("done", "diverged"))
        found.append(f"Not finished: of {len(layout.states)} runs {told}. Numbers and verdicts may still change.")
    if lost := Counter(arm for (arm, _), state in layout.states.items() if state == "diverged"):
        told = ", ".join(f"{arm} {count}" for arm, count in lost.items())
        found.append(f"Diverged runs are in no number, which makes their arm look better than it is: {told}.")
    planned = {run.key for run in layout.plan.runs}
    if others := sum(seed < layout.plan.seeds and key not in planned for key, seed in layout.finished.items()):
        found.append(
            f"{others} finished {'run' if others == 1 else 'runs'} of {layout.plan.name} in the store, of an older "
            "version of this experiment or with other settings, are not shown."
        )
    most = seeds_asked(layout.stages.store, layout.plan.name, layout.plan.overrides) or 0
    if more := {seed for seed in layout.finished.values() if layout.plan.seeds <= seed < most}:
        found.append(
            f"Seeds up to {max(more)} are finished, too, and not shown (asked: {layout.plan.seeds} seeds): whoever "
            "chooses their number by the result chooses the result."
        )
    return tuple(found)


def _incomparable(layout: Layout) -> list[str]:
    """That whole models of ours, or any of ours beside a paper's results, are no other measurement of them."""
    if not layout.paper or (layout.paper.kind != "result" and len(layout.plan.experiment.base) == 1):
        return []
    elsewhere = [label for label, split in layout.shared_columns().items() if split == "test"]
    return [
        "Ours and what is published do not compare. Published: the systems of the paper, at their own size, data, "
        f"budget and fine-tuning. Ours: {', '.join(layout.size())}."
        + (f" On test there, on dev here: {', '.join(elsewhere)}." if elsewhere else "")
    ]


def _no_better(layout: Layout, arms: Sequence[Row], references: Sequence[Row]) -> list[str]:
    """Which arms are no better than a reference on what verdicts are given on."""
    apart = {arm.label for arm in layout.plan.arms if not layout.same_evaluation(arm)}
    found: dict[str, list[str]] = {}
    for index, column in layout.judged.items():
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


def _values(layout: Layout) -> dict[str, dict[str, dict[int, float]]]:
    """Column key to arm to seed to value, without the runs that diverged."""
    held_out = layout.measured.filter(pl.col("stage") == "evaluate", pl.col("split") == "test")
    frames = {
        column.key: held_out.filter(pl.concat_str("task", "metric", separator=".") == column.key).with_columns(
            pl.col("value") * (100 if column.unit == "points" else 1)
        )
        for column in (*HELD_OUT, *DETECTION, *WHOLE_WORDS)
    }
    scores = chosen(layout.plan, layout.measured)
    pairs = layout.measured.filter(pl.col("stage") == "minimal-pairs")
    for task, metric in layout.scores:
        mine = pairs if isinstance(task, MinimalPairs) else scores
        of_task = mine.filter(task=task.name, metric=metric)
        frames[f"{task.name}.{metric}"] = of_task.with_columns(pl.col("value") * 100)
    if layout.plan.experiment.average:
        frames["average"] = averages(scores, GLUE_AVERAGES[layout.plan.experiment.average]).with_columns(
            pl.col("value") * 100
        )
    found: dict[str, dict[str, dict[int, float]]] = {}
    for key, rows in frames.items():
        arms = found.setdefault(key, {})
        for arm, seed, value in rows.select("arm", "seed", "value").iter_rows():
            if layout.states[arm, seed] != "diverged":
                arms.setdefault(arm, {})[seed] = value
    return found


def _arm(layout: Layout, arm: Arm, values: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Row:
    row = layout.row_of(arm)
    published = published_cells(row, layout.published) if row else (None,) * len(layout.published)
    tune = layout.plan.experiment.tune
    unknown = tune.path if tune and arm in layout.plan.untuned else None
    given = (None if path == unknown else Cell(found[arm.label]) for path, found in layout.settings.items())
    ours = (with_published(_cell(layout, column, arm, values[column.key]), column, row) for column in layout.ours)
    certificate = layout.certificates.get(arm.label)
    cells = (*published, *given, *ours, Cell(certificate.mark) if certificate else None)
    return Row(arm.label, arm.label, "Arms", cells, arm=True, baseline=arm.baseline)


def _cell(layout: Layout, column: Column, arm: Arm, values: Mapping[str, Mapping[int, float]]) -> Cell | None:
    mine = values.get(arm.label)
    if not mine:
        return None
    samples = tuple(Sample(seed, layout.runs[arm.label, seed].key, mine[seed]) for seed in sorted(mine))
    comparable = layout.same_origin(arm) and layout.same_items(column, arm)
    difference = paired(mine, values.get(layout.plan.baseline.label, {})) if comparable and not arm.baseline else None
    return Cell(aggregate(list(mine.values()), layout.plan.experiment.aggregate), samples, difference)


def _references(layout: Layout) -> list[Row]:
    """What a model that learnt nothing scores, from the data of the baseline arm."""
    data = layout.measured.filter(pl.col("baseline"), pl.col("stage").is_in(["pack", "task"]))
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
    for task, metric in layout.scores:
        if isinstance(task, MinimalPairs):  # by chance; a constant score would tie
            majority[f"{task.name}.{metric}"] = Cell(50.0)
            continue
        value, stage = measured.get((task.name, f"majority.{metric}", "dev"), (None, None))
        if value is not None:
            majority[f"{task.name}.{metric}"] = Cell(100 * value, stage=stage)
    rows = [("unigram", "unigram frequencies", unigram), ("majority", "best constant answer", majority)]
    blank = (None,) * (len(layout.published) + len(layout.settings))
    found = [(key, label, [known.get(column.key) for column in layout.ours]) for key, label, known in rows]
    return [Row(key, label, "Learnt nothing", (*blank, *cells, None)) for key, label, cells in found if any(cells)]


def _judged(
    layout: Layout, rows: Sequence[Row], values: Mapping[str, Mapping[str, Mapping[int, float]]]
) -> tuple[list[Row], dict[tuple[str, str], tuple[Contrast, Verdict]]]:
    """The arms' `rows` with their verdicts and the best of each column; and what was judged, by arm and column."""
    judged = layout.judged
    seconds = {row.key: _seconds(layout, row.key) for row in rows} if judged else {}

    def refused(arm: str, column: Column) -> str | None:
        return layout.refusals.get(arm) or layout.lost_seeds(column, values[column.key], arm)

    contrasts = {
        (row.key, column.key): Contrast(
            cell.difference,
            bool(column.higher_is_better),
            layout.sesoi(column),
            seconds[row.key] + seconds[layout.plan.baseline.label] or None,
            refused(row.key, column),
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
        if not any(row.key in values[column.key] and refused(row.key, column) for row in rows)
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


def _seconds(layout: Layout, label: str) -> float:
    """What one more seed of an arm takes: the stages that no two seeds share, as one that is done took them."""
    done = next((seed for seed in range(layout.plan.seeds) if layout.states[label, seed] == "done"), None)
    if done is None or layout.plan.seeds == 1:
        return 0.0
    shared = {stage.key for stage in layout.runs[label, 0 if done else 1].stages}
    own = [stage.key for stage in layout.runs[label, done].stages if stage.key not in shared]
    return sum(map(layout.stages.took, own))


def _labels(layout: Layout) -> list[tuple[str, str]]:
    """The paths of the settings, and the last part of each, or all of it where another number of a run ends alike."""
    counts = Counter(path.rpartition(".")[2] for path in flatten(layout.plan.baseline.run.model_dump()))
    return [(path, name if counts[name := path.rpartition(".")[2]] <= 1 else path) for path in layout.settings]


def _provenance(layout: Layout) -> dict[str, Any]:
    return {
        "experiment": layout.plan.experiment_name,
        "scale": layout.plan.scale,
        "overrides": dict(layout.plan.overrides),
        "seeds": layout.plan.seeds,
        "paper": layout.paper.id if layout.paper else None,
        "runs": [
            {
                "run": run.key,
                "arm": run.arm.label,
                "seed": run.seed,
                "state": layout.states[run.arm.label, run.seed],
                "stages": [stage.key for stage in run.stages],
            }
            for run in layout.plan.runs
        ],
    }


def _better(one: Value, other: Value, column: Column) -> bool:
    """Whether a number of a column is better than another, by more than the rounding of a mean."""
    assert isinstance(one, int | float) and isinstance(other, int | float)
    ahead = one > other if column.higher_is_better else one < other
    return ahead and not math.isclose(one, other, abs_tol=1e-9)
