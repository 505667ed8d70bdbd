"""What the command line shows a person: plans, queues, progress. Rich is loaded here and in tables only."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paribus.data.check import Checked
from paribus.errors import ParibusError
from paribus.plan.estimate import Cost, Estimate, cost_key
from paribus.plan.plan import Plan
from paribus.plan.stages import VERSIONS
from paribus.plan.tuning import ends
from paribus.project import Project
from paribus.spec.experiment import Experiment
from paribus.spec.load import suggest
from paribus.store.store import Store

if TYPE_CHECKING:
    from paribus.jobs.queue import Entry
    from paribus.jobs.status import AtWork, Standing

WATCH_SECONDS = 2.0
# Where nobody looks, lines are as wide as a log takes them.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def grid(*columns: str, title: str | None = None) -> Table:
    """A plain table; columns whose name ends in '#' are numbers."""
    found = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        found.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left", overflow="fold")
    return found


def listing(project: Project, store: Store, what: str) -> list[dict[str, Any]]:
    """What there is of the kind `what`, a row each."""
    match what:
        case "experiments":
            experiments = {n: project.experiments.get(n) for n in project.experiments}
            return [{"experiment": n, "question": e.question, "base": _bases(e)} for n, e in experiments.items()]
        case "factors":
            factors = {n: project.factors.get(n) for n in project.factors}
            return [{"factor": n, "levels": ", ".join(f.levels), "source": f.source} for n, f in factors.items()]
        case "bases":
            return [{"base": n, "source": project.bases.get(n).source.strip()} for n in project.bases]
        case "scales":
            return [{"scale": n, "note": project.scales.get(n).note.strip()} for n in project.scales]
        case "protocols":
            return [{"protocol": n, "source": project.protocols.get(n).source.strip()} for n in project.protocols]
        case "tasks":
            tasks = {n: project.task(n) for n in project.tasks}
            return [
                {"task": n, "kind": t.kind, "metrics": ", ".join(t.metrics), "source": t.source}
                for n, t in tasks.items()
            ]
        case "tables":
            tables = {n: project.tables.get(n) for n in project.tables}
            return [
                {"table": n, "kind": t.kind, "title": t.title, "arxiv": t.paper.arxiv or ""} for n, t in tables.items()
            ]
        case "stages":
            return [
                {"key": r["key"], "outcome": r["outcome"], "seconds": round(r["finished"] - r["started"], 1)}
                for r in store.records()
            ]
    kinds = ("experiments", "factors", "bases", "scales", "protocols", "tasks", "tables", "stages")
    raise ParibusError(f"list {what}: no such kind" + suggest(what, kinds))


def _bases(experiment: Experiment) -> str:
    """The base of an experiment and, in brackets, those of single scales."""
    at = ", ".join(f"{scale}: {', '.join(bases)}" for scale, bases in experiment.base_at.items())
    return ", ".join(experiment.base) + (f" ({at})" if at else "")


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A table of rows that have the same keys."""
    table = grid(*rows[0])
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    whole = console if sys.stdout.isatty() else Console(highlight=False, width=10_000)  # to be copied, or cut by others
    whole.print(table)


def show_checked(found: dict[str, list[Checked]], limit: int) -> None:
    """What the files of tasks hold, file by file; of defective rows the first `limit` (0: all)."""
    for task, files in found.items():
        for file in files:
            count = f"{file.groups:,} groups, {file.items:,} items" if file.groups else f"{file.items:,} items"
            official = "" if file.official is None else f", official {file.official:,}"
            print(f"{task} {file.split}: {file.file}")
            if not file.usable:
                continue
            print(f"  {count}{official}{'' if file.complete else ': NOT COMPLETE'}")
            total = sum(file.labels.values())
            if file.labels:
                print("  " + ", ".join(f"{label} {n:,} ({n / total:.1%})" for label, n in file.labels.items()))
            shown = file.defects[: limit or None]
            rest = len(file.defects) - len(shown)
            for line in [*file.notes, *shown, *([f"and {rest} more such rows"] if rest else [])]:
                print(f"  {line}")


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for size, unit in ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def quantity(value: float) -> str:
    """A count with a unit prefix: 171.3k, 109.5M, 7.7E."""
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def plan_summary(plan: Plan, done: set[str], costs: dict[str, Cost]) -> dict[str, Any]:
    """A plan in numbers, as `paribus plan --json` prints it."""
    asked = Counter(stage.kind for run in plan.known for stage in run.stages)
    distinct = Counter(stage.kind for stage in plan.stages())
    finished = Counter(stage.kind for stage in plan.stages() if stage.key in done)
    arms = []
    for arm in plan.arms:
        cost, budget = costs.get(cost_key(arm.run)), arm.run.budget
        tokens, updates = (0, 0) if arm.run.pretrained else (budget.train_tokens, budget.steps)
        runs = [run for run in plan.runs if run.arm is arm]
        arms.append(
            {
                "arm": arm.label,
                "baseline": arm.baseline,
                "runs": len(runs),
                "done": sum(all(stage.key in done for stage in run.stages) for run in runs),
                "tokens": tokens,
                "updates": updates,
                "parameters": cost.parameters if cost else None,
                "embedding_parameters": cost.embedding if cost else None,
                "train_flops": cost.train_flops_a_token * tokens if cost else None,
            }
        )
    for told, tuning in zip(arms, plan.tunings, strict=False):
        trials = {"asked": tuning.tune.trials, "known": len(tuning.trials), "done": tuning.done}
        tried = [{"value": trial.value, "loss": trial.loss} for trial in tuning.trials]
        best = tuning.best.value if tuning.best else None
        told["tuning"] = {"path": tuning.tune.path, "trials": trials, "tried": tried, "chosen": best}
    stages = {
        kind: {"asked": asked[kind], "distinct": distinct[kind], "done": finished[kind]}
        for kind in VERSIONS
        if asked[kind]
    }
    return {"plan": plan.name, "seeds": plan.seeds, "runs": len(plan.runs), "arms": arms, "stages": stages}


def show_plan(plan: Plan, done: set[str], costs: dict[str, Cost], left: Estimate) -> None:
    """A plan for a person."""
    summary = plan_summary(plan, done, costs)
    console.print(f"[bold]{plan.name}[/]: {plan.experiment.question}")
    console.print(f"expected: {plan.experiment.expect}\n")
    arms = grid("arm", "runs#", "done#", "tokens#", "updates#", "parameters#", "embedding#", "FLOPs a run#")
    for arm in summary["arms"]:
        counted = [arm["parameters"], arm["embedding_parameters"], arm["train_flops"]]
        arms.add_row(
            arm["arm"] + ("*" if arm["baseline"] else ""),
            str(arm["runs"]),
            str(arm["done"]),
            quantity(arm["tokens"]),
            f"{arm['updates']:,}",
            *(quantity(value) if value is not None else "?" for value in counted),
        )
    console.print(arms)
    print("* baseline; embedding: of the parameters, those of the token, segment and position tables\n")
    if plan.tunings:
        console.print(_tunings(plan))
        console.print("")
    stages = grid("stage", "asked for#", "shared#", "done#", "to do#")
    for kind, count in summary["stages"].items():
        shared, todo = count["asked"] - count["distinct"], count["distinct"] - count["done"]
        stages.add_row(kind, str(count["asked"]), str(shared), str(count["done"]), str(todo))
    console.print(stages)
    basis = (
        "measured here" if left.measured > 0.99 else f"{left.measured:.0%} measured here, the rest guessed from FLOPs"
    )
    if left.seconds:
        console.print(
            f"\nleft to do: about {duration(left.seconds)} of one worker ({basis}), {quantity(left.bytes)}B on disk"
        )
    elif not plan.untuned:
        console.print("\nnothing left to do")
    if plan.untuned:
        trials = sum(tuning.tune.trials - len(tuning.trials) for tuning in plan.tunings)
        runs = plan.seeds * len(plan.untuned)
        console.print(f"not counted: {trials} trials that earlier ones will suggest, and {runs} runs after tuning")


def _tunings(plan: Plan) -> Table:
    """How far the tuning of each arm is, and what it chose."""
    found = grid("arm", "tuned", "from#", "to#", "trials#", "done#", "chosen#", "validation loss#")
    for tuning in plan.tunings:
        best, (low, high) = tuning.best, ends(tuning.tune)
        chosen = (f"{best.value:g}", f"{best.loss:.3f}") if best else ("after tuning", "")
        counts = str(tuning.tune.trials), str(tuning.done)
        found.add_row(tuning.arm.label, tuning.tune.path, f"{low:g}", f"{high:g}", *counts, *chosen)
    return found


def show_json(data: Any) -> None:
    """For programs."""
    print(json.dumps(data, indent=1))


GLYPHS = {
    "done": "\u2713",
    "running": "\u25b6",
    "waiting": "\u00b7",
    "lost": "?",
    "pruned": "p",
    "failed": "\u2717",
    "diverged": "\u221e",
    "cancelled": "\u2013",
}


def status_view(store: Store, found: "Sequence[Standing]", gpus: Sequence[str], runs: bool = False) -> RenderableType:
    """Every queue: its arms by seeds, what is at work, how long still, and why runs failed; GPUs and Slurm jobs.

    With `runs` a line a run, with its key, in place of arms by seeds.
    """
    parts: list[RenderableType] = []
    for standing in found:
        parts += [*_standing(standing, runs), ""]
    parts += [Text(line) for line in gpus]
    parts += _jobs(found, store)
    parts += [Text(told)] if (told := paused(store)) else []
    if any(standing.runs for standing in found):
        parts.append(Text("  ".join(f"{glyph} {status}" for status, glyph in GLYPHS.items()), style="dim"))
    return Group(*parts) if parts else Text("nothing was queued yet")


def _standing(found: "Standing", runs: bool) -> Iterator[RenderableType]:
    reported = found.reported
    told = f"{len(reported)} runs: {counts_line([entry.status for entry in reported])}"
    if found.seconds_left:
        told += f", about {duration(found.seconds_left)} left"
    if found.trials:
        told += f"; tuning trials: {counts_line(list(found.trials.elements()))}"
    if found.older:
        told += f"; {found.older} runs of an older version of the experiment are not shown"
    yield Text.assemble((found.name, "bold"), f"  {told}")
    if runs:
        yield _runs(found.runs)
    elif reported:
        yield _arms_by_seeds(found)
    if found.at_work:
        yield _at_work(found.at_work)
    for entry in found.runs:
        if entry.reason and entry.status in ("failed", "diverged"):
            yield Text(f"{entry.run} ({entry.arm}, seed {entry.seed}) {entry.status}: {entry.reason.splitlines()[0]}")


def _runs(entries: "Sequence[Entry]") -> Table:
    table = grid("run", "arm", "seed#", "status", "tries#")
    for entry in entries:
        table.add_row(entry.run, Text(entry.arm), str(entry.seed), entry.status, str(entry.attempt))
    return table


def _arms_by_seeds(found: "Standing") -> Table:
    reported = found.reported
    seeds = sorted({entry.seed for entry in reported})
    shares = {work.entry.run: work.share for work in found.at_work}
    table = grid("arm", *(f"{seed}#" for seed in seeds))
    cells: dict[str, dict[int, str]] = {}
    for entry in reported:
        share = shares.get(entry.run)
        cells.setdefault(entry.arm, {})[entry.seed] = GLYPHS[entry.status] if share is None else f"{share:.0%}"
    for arm, row in cells.items():
        table.add_row(Text(arm), *(row.get(seed, "") for seed in seeds))
    return table


def _at_work(works: "Sequence[AtWork]") -> Table:
    table = grid("at work", "run", "seed#", "stage", "step#", "a second#", "loss#", "left#", "worker")
    for work in works:
        step = f"{work.step}/{work.steps}" if work.step is not None else ""
        rate = f"{quantity(work.rate)} {work.unit}" if work.rate else ""
        loss = f"{work.loss:.3f}" if work.loss is not None else ""
        left = duration(work.seconds_left) if work.seconds_left is not None else ""
        stage = work.stage.rpartition("-")[0] if work.stage else ""
        entry = work.entry
        run, worker = entry.run[:12], Text(entry.worker or "")  # so much of the key is enough for `paribus logs`
        table.add_row(Text(entry.arm), run, str(entry.seed), stage, step, rate, loss, left, worker)
    return table


def watch(look: Callable[[], RenderableType]) -> None:
    """Show what `look` says, again and again until Ctrl-C; once where nobody watches."""
    if not console.is_terminal:
        console.print(look())
        return
    with Live(look(), console=console, auto_refresh=False, screen=True) as live, suppress(KeyboardInterrupt):
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(look(), refresh=True)


def _jobs(found: "Sequence[Standing]", store: Store) -> Iterator[RenderableType]:
    """The Slurm jobs of the store, where there are any: their states, what runs they work on, why they failed."""
    from paribus.jobs.slurm import jobs

    try:
        known = jobs(store)
    except ParibusError as error:
        yield Text(f"jobs: {error}")
        return
    if not known:
        return
    holders = {work.entry.run: (store.worker(work.entry.run) or {}).get("job") for one in found for work in one.at_work}
    table = grid("job", "state", "where", "works on")
    for job in known:
        table.add_row(job.id, job.state, job.where, ", ".join(run for run in holders if holders[run] == job.id))
    yield table
    for job in known:
        if job.said:
            yield Text(f"job {job.id} {job.state}: {job.said}")


def progress_table(store: Store) -> Table:
    """The stages being worked on: how far, how fast, how long still."""
    found = grid("in progress", "step#", "a second#", "loss#", "time left#")
    for folder in sorted((store.root / "doing").glob("*")):
        if store.worker(folder.name):
            told = store.progress(folder.name)
            if told:
                rate, loss = f"{told['rate']:,.0f} {told['unit']}", f"{told['loss']:.3f}"
                found.add_row(
                    folder.name, f"{told['step']}/{told['steps']}", rate, loss, duration(told["seconds_left"])
                )
            else:
                found.add_row(folder.name, "", "", "", "")
    return found


def counts_line(statuses: Sequence[str]) -> str:
    """How many runs stand where."""
    counts = Counter(statuses)
    order = ("done", "running", "waiting", "lost", "pruned", "failed", "diverged", "cancelled")
    return ", ".join(f"{counts[status]} {status}" for status in order if counts[status]) or "no runs"


def paused(store: Store) -> str:
    """What to say where workers wait for space on the disk; nothing where none does."""
    return f"paused: disk, {store.free / 2**20:,.0f} MB free" if store.paused else ""


class Display:
    """Live progress where a person looks; a line each time a count changes where nobody does."""

    def __init__(self, store: Store, statuses: Callable[[], list[str]]) -> None:
        self._store, self._statuses = store, statuses
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        self._last, self._looked = "", 0.0

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def look(self) -> None:
        """Look at the store again, at most once a second."""
        if time.monotonic() - self._looked < 1.0:
            return
        self._looked = time.monotonic()
        line = "runs: " + counts_line(self._statuses()) + (f"; {told}" if (told := paused(self._store)) else "")
        if self._live:
            self._live.update(_stack(line, progress_table(self._store)))
        elif line != self._last:
            print(line, file=sys.stderr, flush=True)
        self._last = line


def _stack(line: str, table: Table) -> RenderableType:
    return Group(line, table)
