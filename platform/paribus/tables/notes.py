"""The foot of an experiment's table: how its numbers came about and what to doubt about them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from paribus.plan.arms import Arm
from paribus.spec.experiment import GLUE_AVERAGES
from paribus.spec.finetuning import FineTuning
from paribus.spec.objective import Rtd
from paribus.spec.table import PaperTable
from paribus.spec.task import MinimalPairs, Task
from paribus.tables.layout import Layout
from paribus.tables.published import cite, of_group, without_arm
from paribus.tables.table import Row
from paribus.tables.tuning import unequal


def notes(layout: Layout, rows: Sequence[Row]) -> list[str]:
    """All of them; `rows`: the arms', with their verdicts."""
    plan, experiment = layout.plan, layout.plan.experiment
    notes = [
        f"Ours: {'; '.join(layout.size())}.",
        _count(layout),
        f"A cell of ours is the {experiment.aggregate} over n seeds. Below it the difference to "
        f"{plan.baseline.label}: the mean of the differences paired by seed, with its 95 % t interval "
        "(df = pairs - 1; none for one pair), each comparison by itself, not corrected for their number.",
        *_verdict_notes(layout, rows),
    ]
    if turned := _turned(layout, rows):
        notes.append(turned)
    if any(column.beside for column in layout.ours):
        notes.append(
            "Where the paper has the column too, its value stands last in the cell, marked published; differences "
            "and verdicts are between our arms alone."
        )
    keys = {column.key for column in layout.ours}
    if "mlm.loss" in keys:
        notes.append("MLM loss: nats a masked token on held-out documents (test split).")
    if "words.word_accuracy" in keys:
        notes += _words(layout)
    if "rtd.auc" in keys:
        notes += _detection(layout)
    notes += _imports(layout)
    notes += filter(None, [_masks(layout), _padding(layout), _sentences(layout)])
    notes += _tunings(layout)
    apart = [arm.label for arm in plan.arms if not layout.same_evaluation(arm)]
    if apart and keys & {"mlm.loss", "generator.loss"}:
        notes.append(
            f"Held-out tokens differ between {plan.baseline.label} and {', '.join(apart)}: nats and perplexities "
            "of different tokens do not compare, so no difference is shown. The unigram row is "
            f"{plan.baseline.label}'s."
        )
    if "words.bits_per_byte" in keys and (other := [arm.label for arm in plan.arms if not layout.same_words(arm)]):
        notes.append(
            f"Held-out words differ between {plan.baseline.label} and {', '.join(other)} (in their documents, their "
            "masks or their case): bits a byte and words right of different text do not compare, so no difference "
            "is shown."
        )
    if unseen := [arm.label for arm in plan.arms if not layout.same_marks(arm)]:
        never = plan.baseline.label if plan.baseline.run.objective.replacement.mask == 0 else ", ".join(unseen)
        notes.append(
            f"{never} never saw [MASK], by which held-out tokens, words and minimal pairs are hidden: no difference "
            "is shown there."
        )
    if others := layout.other_units():
        notes.append(
            f"{', '.join(others)} and {plan.baseline.label} were trained to predict other units, and each is best "
            "at its own. MLM loss asks for single tokens, also inside words, where training on whole words never "
            "puts a mask: no difference is shown. Words masked whole favour the units that are made of them."
        )
    if lost := _lost_tunings(layout):
        notes.append(lost)
    if layout.certificates:
        notes.append(
            "All else equal: ✓ only the factor differs from the baseline, ~ what moved with it, ✗ what differs "
            f"besides: `paribus compare {plan.name}:ARM {plan.baseline.label}{plan.options}` shows all of it."
        )
    if len(experiment.base) > 1:
        notes.append(
            "Bases are whole models: a difference between two is of everything in which they differ, and of no "
            "factor by itself."
        )
    notes += [_pairs(layout, task) for task in layout.tasks if isinstance(task, MinimalPairs)]
    if any(task.trains for task in layout.tasks):
        notes += _protocols(layout)
    if layout.paper:
        notes.append(
            f"Published values are the paper's own, at its own size, data and budget: {cite(layout.paper)}. "
            f"{layout.paper.protocol}"
        )
        notes += _coverage(layout, layout.paper)
    return notes


def _turned(layout: Layout, rows: Sequence[Row]) -> str:
    """Where the cells of an arm and the baseline lie the other way round than their difference says."""
    baseline = next(row for row in rows if row.baseline)
    found: dict[str, list[str]] = {}
    for row in rows:
        for place, column in layout.places.items():
            mine, other = row.cells[place], baseline.cells[place]
            if mine and other and mine.difference and isinstance(mine.value, float) and isinstance(other.value, float):
                if (mine.value - other.value) * mine.difference.mean < 0:
                    found.setdefault(column.label, []).append(row.label)
    told = "; ".join(f"{label} of {', '.join(labels)}" for label, labels in found.items())
    how = layout.plan.experiment.aggregate
    return f"The {how}s lie the other way round than the mean paired difference: {told}." if told else ""


def _verdict_notes(layout: Layout, rows: Sequence[Row]) -> list[str]:
    """What was judged, how it was corrected, and how the verdicts are to be read."""
    verdicts = [cell.verdict for row in rows for cell in row.cells if cell and cell.verdict]
    size = sum(verdict.kind not in ("refused", "one seed") for verdict in verdicts)
    if not size:  # why some are refused stands at the beginning of the notes
        single = any(verdict.kind == "one seed" for verdict in verdicts)
        return ["One seed decides nothing, so there is no verdict."] if single else []
    judged = [column for column in layout.ours if column.judged]
    sesoi = {column.label: (layout.sesoi(column), column.unit) for column in judged}
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
        "tells them apart; where none is, nothing can be tested."
        + (" None is bold beside an arm that is refused a verdict." if layout.refusals else "")
    ]
    if told:
        notes.append(
            f"Smallest effects of interest (SESOI), declared in the experiment: {', '.join(told)}. Equivalent: "
            "smaller than that either way (two one-sided tests, Holm). +k seeds: how many more would find an "
            "effect of that size with 80 % power; hours of this arm and the baseline, as measured, on one worker. "
            "Seeds added until a verdict comes make false ones about twice as likely: fix their number before."
        )
    if lacking:
        notes.append(
            f"No smallest effect of interest is declared (`sesoi`) for {', '.join(lacking)}: nothing can be called "
            "equivalent there, and no number of seeds enough."
        )
    return notes


def _count(layout: Layout) -> str:
    """How many runs are done, and for each arm what became of the others."""
    total, done = len(layout.states), sum(state == "done" for state in layout.states.values())
    others = Counter((arm, state) for (arm, _), state in layout.states.items() if state != "done")
    rest = "".join(f"; {arm}: {count} {state}" for (arm, state), count in others.items())
    return f"{done} of {total} runs are done (seeds asked: {layout.plan.seeds}){rest}."


def _words(layout: Layout) -> list[str]:
    """What masked words are, and where arms differ in their vocabulary what their pieces are like."""
    names = ["tokens_a_word", "bytes_a_token", "unknown_share", "unigram_bits_per_byte"]
    asked = pl.col("split").eq("test") & pl.col("metric").is_in(names)
    rows = layout.measured.filter(asked).select("arm", "metric", "value").iter_rows()
    values = {(arm, metric): value for arm, metric, value in rows}
    arms = [arm.label for arm in layout.plan.arms if all((arm.label, name) in values for name in names)]
    found = ((arm, *(values[arm, name] for name in names)) for arm in arms)
    each = (
        f"{arm} {a:.2f} tokens a word, {b:.2f} bytes a token, {100 * c:.2f} % [UNK], unigram {d:.3f} bits a byte"
        for arm, a, b, c, d in found
    )
    corpora = len({stage.key for stage in layout.plan.stages() if stage.kind == "corpus"})
    same = "the same words for every arm" if corpora == 1 else "of each arm's own corpus"
    masked = (
        f"Words of held-out documents are masked whole, {same} (test split). Bits a byte: the cost of their pieces "
        "over their bytes in the text; a byte that [UNK] hides, or that is dropped as accents are in lower case, costs "
        "8 bits more. Whole words right: the share of which every piece is right and hides nothing."
    )
    if layout.vocabularies == 1:
        return [masked]
    return [
        "Arms differ in their vocabulary, so nats and perplexities of tokens do not compare.",
        f"{masked} What a model learnt is its distance to the unigram frequencies of its own pieces; the unigram "
        "row has the baseline's.",
        *([f"On test documents: {'; '.join(each)}. An update sees equal tokens, not bytes."] if arms else []),
    ]


def _detection(layout: Layout) -> list[str]:
    """How columns of replaced-token detection are to be read, and how each arm's parameters moved."""
    found = {arm.label: arm.run.objective for arm in layout.plan.arms if isinstance(arm.run.objective, Rtd)}
    steps = (
        f"{arm} {'one on the joint loss' if objective.joint else 'generator, then discriminator'}"
        for arm, objective in found.items()
    )
    seen = {arm: objective.replacement for arm, objective in found.items()}
    shares = {
        arm: f"{100 * of.mask:g} % [MASK], {100 * of.random:g} % random, {100 * (1 - of.mask - of.random):.3g} % kept"
        for arm, of in seen.items()
    }
    return [
        "Generator MLM loss: nats a masked token on held-out documents (test split). It measures the generator "
        "only; what is fine-tuned is the discriminator.",
        "Replaced precision and recall (at probability 1/2) and AUC: how well the discriminator finds, among all "
        "tokens of those documents, the samples of its own run's generator. A better generator makes that harder: "
        "compare arms by tasks.",
        f"Optimizer steps an update: {'; '.join(steps)}.",
        f"At masked places generators see: {_by_arm(shares)}.",
    ]


def _imports(layout: Layout) -> list[str]:
    """Which arms were not pretrained here, where they are from, and that they show nothing about a factor."""
    imported = [(arm.label, arm.run.pretrained) for arm in layout.plan.arms if arm.run.pretrained]
    notes = [
        f"{label} was imported, not pretrained here: encoder and tokenizer of {Path(source.path).name}, sha256 "
        f"{(source.sha256 or '')[:16]}. Its data, budget and seeds are its makers'; only fine-tuning varies with "
        "our seeds, held-out losses do not."
        for label, source in imported
    ]
    evaluated = set(layout.measured.filter(pl.col("stage") == "evaluate")["arm"])
    done = {arm for (arm, _), state in layout.states.items() if state == "done"}
    if headless := [label for label, _ in imported if label in done - evaluated]:
        notes.append(
            f"No held-out loss and no score of pairs of {', '.join(headless)}: it came without a vocabulary head "
            "that fits."
        )
    if 0 < len(imported) < len(layout.plan.arms):
        notes.append("Imported and pretrained arms differ in everything, so no difference between them is shown.")
    return notes


def _masks(layout: Layout) -> str:
    """How many masks a row has in each arm, where arms differ in that."""
    asked = pl.col("stage").eq("pretrain") & pl.col("metric").is_in(["masks_a_row", "epochs"])
    found = layout.measured.filter(asked).group_by("arm", "metric").agg(pl.col("value").median())
    values = {(arm, metric): value for arm, metric, value in found.iter_rows()}
    arms = [arm.label for arm in layout.plan.arms if (arm.label, "masks_a_row") in values]
    if len({values[arm, "masks_a_row"] for arm in arms}) < 2:
        return ""
    each = (f"{arm} {values[arm, 'masks_a_row']:.0f} in {values[arm, 'epochs']:.1f} passes" for arm in arms)
    return f"Masks a train row: {', '.join(each)}."


def _padding(layout: Layout) -> str:
    """The share of padding in each arm, where arms differ in that."""
    asked = pl.col("stage").eq("pack") & pl.col("metric").eq("padding_share") & pl.col("split").eq("train")
    shares = dict(layout.measured.filter(asked).group_by("arm").agg(pl.col("value").first()).iter_rows())
    if len(set(shares.values())) < 2:
        return ""
    each = (f"{arm.label} {100 * shares[arm.label]:.1f} %" for arm in layout.plan.arms if arm.label in shares)
    return f"Padding of the train rows, no part of the tokens a run: {', '.join(each)}."


def _sentences(layout: Layout) -> str:
    """How well each arm's sentence objective was learnt, beside what a constant answer is worth."""
    rows = layout.measured.filter(pl.col("stage") == "evaluate", pl.col("split") == "test")
    told, most = (
        dict(rows.filter(pl.col("metric") == name).group_by("arm").agg(pl.col("value").median()).iter_rows())
        for name in ("sentence_accuracy", "majority.sentence_accuracy")
    )
    each = (
        f"{arm.label} {100 * told[arm.label]:.1f} % right (a constant answer {100 * most[arm.label]:.1f} %)"
        for arm in layout.plan.arms
        if arm.label in told
    )
    return f"Sentence objective on held-out rows, median over seeds: {', '.join(each)}." if told else ""


def _tunings(layout: Layout) -> list[str]:
    """How what is tuned was tuned, what each arm chose, and what to doubt about it."""
    if not layout.tuned:
        return []
    tune = layout.plan.tunings[0].tune
    notes = [
        f"{tune.path} is each arm's own best of {tune.trials} trials by loss on validation documents, at seed "
        f"{tune.seed}, which no cell reports (pruner: {tune.pruner.kind})."
    ]
    if any(isinstance(arm.run.objective, Rtd) for arm in layout.plan.arms):
        notes.append(
            "Of replaced-token detection that is the discriminator's loss on the samples of the trial's own generator, "
            "which a worse generator makes lower."
        )
    notes += [account.sentence for account in layout.tuned]
    if reason := unequal(layout.plan.tunings):
        notes.append(reason[0].upper() + reason[1:] + ".")
    return notes


def _lost_tunings(layout: Layout) -> str:
    """How many fine-tunings diverged, by arm and task."""
    lost = layout.measured.filter(pl.col("stage") == "finetune", pl.col("split") == "dev", pl.col("value").is_nan())
    counts = lost.group_by("arm", "task", maintain_order=True).len().iter_rows()
    each = [f"{arm}, {task}: {count}" for arm, task, count in counts]
    return f"Fine-tunings that diverged, whose rate is not chosen: {'; '.join(each)}." if each else ""


def _pairs(layout: Layout, task: MinimalPairs) -> str:
    """How a task of minimal pairs is scored, and what to doubt about it."""
    rows = layout.measured.filter(stage="minimal-pairs", task=task.name)
    medians = rows.group_by("arm", "metric", maintain_order=True).agg(pl.col("value").median())
    ties = [f"{arm} {100 * value:.2f} %" for arm, _, value in medians.filter(metric="ties").iter_rows() if value]
    out = [f"{arm} {value:.0f}" for arm, _, value in medians.filter(metric="too_long").iter_rows() if value]
    apart = [arm.label for arm in layout.plan.arms if not layout.same_pairs(arm, task)]
    return (
        f"{task.name} x 100: the share of pairs of which the acceptable sentence scores higher, nothing trained "
        f"({_by_arm({arm.label: _scoring(arm) for arm in layout.plan.arms})}), mean over "
        f"{'phenomena' if task.metrics[0] == 'phenomenon-accuracy' else 'paradigms'}. Chance is 50; a tie is wrong"
        + (f" (median over seeds: {', '.join(ties)})." if ties else ".")
        + (f" Pairs left out, longer than a row of pretraining: {', '.join(out)}." if out else "")
        + (f" Other pairs than {layout.plan.baseline.label}, no difference: {', '.join(apart)}." if apart else "")
    )


def _protocols(layout: Layout) -> list[str]:
    """How task scores came about: what chose, what was trained, and where the reported items themselves chose."""
    plan = layout.plan
    trained = [task for task in layout.tasks if task.trains]
    told: dict[str, list[str]] = {}
    for task in trained:
        text = _by_arm({arm.label: _recipe(arm.run.finetuning, task) for arm in plan.arms})
        told.setdefault(text, []).append(task.name)
    each = [(text if len(told) == 1 else f"{', '.join(tasks)}: {text}") for text, tasks in told.items()]
    named = plan.experiment.protocol_for(plan.scale)
    protocol = f" (protocol {named})" if named else ""
    marked = sum(map(layout.on_dev, trained))
    held_out = ", on items held out of train" if marked < len(trained) else ""
    several = {task.name: task.metrics[0] for task, metric in layout.scores if metric != task.metrics[0]}
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


def _coverage(layout: Layout, paper: PaperTable) -> list[str]:
    """Which row of the paper each arm stands beside, and which rows and columns have nothing of ours."""
    rows = {arm.label: row for arm in layout.plan.arms if (row := layout.row_of(arm))}
    beside = [f"{arm}: {of_group(row)}" for arm, row in rows.items() if _plain(arm) != _plain(row.label)]
    mine, name = layout.shared_columns(), layout.plan.experiment_name
    empty = [column.label for column in paper.columns if column.task and column.label not in mine]
    return [
        *([f"The paper's row beside an arm: {'; '.join(beside)}."] if beside else []),
        *([f"Columns of the paper that no task of {name} measures: {', '.join(empty)}."] if empty else []),
        *filter(None, [without_arm(paper)]),
    ]


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


def _plain(label: str) -> str:
    """The letters and digits of a label."""
    return "".join(filter(str.isalnum, label)).lower()
