"""What MLflow should say about a plan, as plain data. `mirror` makes it so; nothing here imports MLflow.

    experiment   masking@tiny                           the table as files
      arm        static                                 what the table says of it
        run      static seed 0                   also carries the final measurements, the spec and the environment
          stage  pretrain, evaluate, acceptability lr=0.001 batch=16 epochs=3 #0

Everything, timestamps included, is a function of the plan and the store, so that sending it twice changes nothing and a
rebuilt mirror equals the live one.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

import yaml

from paribus.plan.arms import Arm
from paribus.plan.choice import best_point, over_restarts
from paribus.plan.plan import Plan, PlannedRun, flatten
from paribus.plan.stages import PairTest, Stage, TaskTuning
from paribus.spec.base import Spec, canonical, digest
from paribus.spec.finetuning import Point as GridPoint
from paribus.spec.task import Task
from paribus.store.store import Store
from paribus.tables.render import FORMATS, render
from paribus.tables.summary import summary
from paribus.tables.table import Table

OWN = ("pretrain", "import", "evaluate", "minimal-pairs", "finetune")
"""The kinds of stage that belong to one run; the others are shared and appear as tags."""


OVER = ("done", "diverged", "pruned")


class Point(NamedTuple):
    """One value of a metric. `timestamp` is in milliseconds since 1970."""

    key: str
    value: float
    step: int
    timestamp: int


@dataclass(frozen=True)
class Content:
    """What an MLflow run holds. `start` and `end` are in milliseconds since 1970; `end` is None until it is over."""

    outcome: str
    """done, diverged, pruned, running, or missing: unfinished and nobody is working on it."""
    start: int
    end: int | None
    tags: dict[str, str]
    params: dict[str, str]
    points: list[Point]
    artifacts: dict[str, str]
    """File name to text."""
    summary: Sequence[Point] | None = ()
    """What a table says now, later perhaps something else, at a later step; None, without one: what was said stands."""


@dataclass(frozen=True)
class Look:
    """The state of a stage, seen without opening a file: `state` changes with its outcome, `curve` with its curve."""

    finished: bool
    alive: bool
    state: str
    curve: str


@dataclass(frozen=True)
class Facts:
    """A stage that was at least started. `record` is its stage.json, empty until it is finished."""

    outcome: str
    start: int
    end: int | None
    record: dict[str, Any]


def milliseconds(seconds: float) -> int:
    """MLflow's unit of time."""
    return round(seconds * 1000)


def params_of(spec: Spec) -> dict[str, str]:
    """`spec` as dotted path to text. Canonical, since MLflow's params are write-once: labels and paths may change."""
    flat = flatten(json.loads(canonical(spec)))
    return {path: value if isinstance(value, str) else json.dumps(value) for path, value in flat.items()}


class Wanted:
    """One look at the store for one plan. What is not asked for is not read."""

    def __init__(self, plan: Plan, store: Store, table: Callable[[], Table] | None = None) -> None:
        """`table` makes the plan's table; without it, nothing is said of arms as a whole."""
        self.plan, self._store, self._table = plan, store, table
        self.look = cache(self._look)
        self.facts = cache(self._facts)
        self.provenance = cache(store.provenance)
        self.busy = cache(self._busy)
        self.arms: Sequence[ArmEntry] = ()

    @property
    def note(self) -> str:
        """The description of the MLflow experiment, in Markdown."""
        experiment = self.plan.experiment
        about = f"{experiment.question}\n\n*Expected:* {experiment.expect}\n\n*Scale:* {self.plan.scale}"
        return f"{about}\n\n{render(self.table, 'md')}" if self.table else about

    @cached_property
    def table(self) -> Table | None:
        """The plan's table, once a run of it was started."""
        started = any(self.look(run.pretrained.key) for run in self.plan.runs)
        return self._table() if self._table and started else None

    def entries(self) -> "Iterator[Entry]":
        """Everything that may become an MLflow run, parents first."""
        trials = [(run.arm, [run]) for run in self.plan.trials]
        arms = [(arm, [run for run in self.plan.runs if run.arm is arm]) for arm in self.plan.arms]
        whole = ExperimentEntry(self)
        found = []
        for arm, planned in [*trials, *arms]:
            id = digest(f"{self.plan.label}|{arm.label}|{canonical(arm.run)}")
            tags = self._tags(arm)
            runs = [RunEntry(self, id, tags, run) for run in planned]
            found.append(ArmEntry(self, whole.id, id, tags, arm, runs))
        whole.arms = self.arms = found
        yield whole
        for entry in found:
            yield entry
            for run in entry.runs:
                yield run
                yield from run.stages

    def curve(self, key: str) -> list[dict[str, Any]]:
        """The learning curve of a stage."""
        try:
            return self._store.curve(key)
        except FileNotFoundError:  # it was finished, and moved, between finding the file and opening it
            return self._store.curve(key)

    def rows(self, stage: Stage) -> list[tuple[str | None, str, str | None, float]]:
        """The measurements of a finished stage: its task where it says one, metric, split and value."""
        return [(row.get("task"), row["metric"], row["split"], row["value"]) for row in self._store.rows(stage.key)]

    def _tags(self, arm: Arm) -> dict[str, str]:
        return {
            "paribus.experiment": self.plan.experiment_name,
            "paribus.scale": self.plan.scale,
            "paribus.plan": self.plan.label,
            "paribus.arm": arm.label,
            "paribus.baseline": json.dumps(arm.baseline),
            "paribus.corpus_sha256": str(getattr(arm.run.corpus, "sha256", None)),
            **{f"paribus.level.{factor}": level for factor, level in arm.levels.items()},
        }

    def _busy(self, run_key: str) -> bool:
        """Whether a worker is at this run, be it between two stages."""
        return self._store.worker(run_key) is not None

    def _look(self, key: str) -> Look | None:
        try:
            return Look(True, False, f"finished {(self._store.folder(key) / 'stage.json').stat().st_mtime_ns}", "")
        except FileNotFoundError:
            pass
        scratch = self._store.root / "doing" / key / "scratch"
        try:
            started = (scratch / "first_started").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        try:
            curve = (scratch / "curve.jsonl").stat()
            seen = f"{curve.st_size} {curve.st_mtime_ns}"
        except FileNotFoundError:
            seen = ""
        alive = self._store.worker(key) is not None
        return Look(False, alive, f"started {started} {alive}", seen)

    def _facts(self, key: str) -> Facts:
        look = self.look(key)
        assert look is not None
        if not look.finished:
            try:
                started = (self._store.root / "doing" / key / "scratch" / "first_started").read_text()
                return Facts("running" if look.alive else "missing", milliseconds(float(started)), None, {})
            except FileNotFoundError:
                pass  # finished since the look
        record = self._store.record(key)
        times = milliseconds(record["first_started"]), milliseconds(record["finished"])
        return Facts(record["outcome"], *times, record)


def _together(parts: Sequence[Facts], lacking: bool) -> Facts:
    """Outcome and times of what consists of `parts`; `lacking`: more will be started."""
    outcomes = {part.outcome for part in parts} | ({"missing"} if lacking else set())
    outcome = next(word for word in ("running", "missing", "diverged", "pruned", "done") if word in outcomes)
    ends = [part.end for part in parts if part.end is not None]
    return Facts(outcome, min(part.start for part in parts), max(ends) if outcome in OVER else None, {})


class ExperimentEntry:
    """The whole plan: the parent of its arms, with the table as files."""

    parent = None

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self.arms = wanted, list[ArmEntry]()
        self.name = wanted.plan.label
        self.id = digest(f"{wanted.plan.label}|experiment")

    @property
    def source(self) -> str | None:
        """What `read` depends on; None until a run is started."""
        started = [arm.source or "" for arm in self.arms]
        table = self._wanted.table
        said = digest(render(table, "json")) if table else ""
        return digest(" ".join([*started, said])) if any(started) else None

    def read(self) -> Content:
        """What MLflow should hold."""
        facts = _together([arm.facts for arm in self.arms if arm.source], not all(arm.source for arm in self.arms))
        plan, table = self._wanted.plan, self._wanted.table
        tags = {"paribus.kind": "experiment", "paribus.experiment": plan.experiment_name, "paribus.scale": plan.scale}
        tags["paribus.plan"] = plan.label
        files = {f"table.{format}": render(table, format) for format in FORMATS} if table else {}
        return Content(facts.outcome, facts.start, facts.end, tags, {}, [], files)


class ArmEntry:
    """An arm: the parent of its runs, with what the table says of it."""

    def __init__(
        self, wanted: Wanted, parent: str, id: str, tags: dict[str, str], arm: Arm, runs: "Sequence[RunEntry]"
    ) -> None:
        self._wanted, self.parent, self.id, self._tags, self._arm, self.runs = wanted, parent, id, tags, arm, runs
        self.name = arm.label

    @property
    def facts(self) -> Facts:
        """Outcome and times over the runs."""
        return _together([run.summary for run in self.runs if run.source], not all(run.source for run in self.runs))

    @property
    def source(self) -> str | None:
        """What `read` depends on; None until a run is started."""
        started = [run.source or "" for run in self.runs]
        said = json.dumps(self._said()) if any(started) else ""
        return digest(json.dumps([*started, said, self._tags])) if any(started) else None

    def read(self) -> Content:
        """What MLflow should hold."""
        facts = self.facts
        measured, verdicts = self._said() or ({}, {})
        ends = [entry.summary.end for arm in self._wanted.arms for entry in arm.runs if entry.source]
        over = [end for end in ends if end is not None]
        return Content(
            facts.outcome,
            facts.start,
            facts.end,
            tags={"paribus.kind": "arm", **self._tags, **verdicts},
            params={path: value for path, value in params_of(self._arm.run).items() if path != "seed"},
            points=[],
            artifacts={},
            # The more runs have ended, the later the step: MLflow shows the last one.
            summary=[Point(key, value, len(over), max(over)) for key, value in measured.items() if over]
            if self._wanted.table
            else None,
        )

    def _said(self) -> tuple[dict[str, float], dict[str, str]] | None:
        """What the table says: metrics by name, and tags; None without one."""
        table = self._wanted.table
        return summary(table, self._arm.label) if table else None


class RunEntry:
    """An arm at a seed: the parent of its stages, comparable with the other runs."""

    def __init__(self, wanted: Wanted, parent: str, arm_tags: dict[str, str], run: PlannedRun) -> None:
        self._wanted, self._run, self.parent = wanted, run, parent
        self.id = digest(f"{parent}|{run.key}|{run.seed}")
        self.name = f"{run.arm.label} seed {run.seed}"
        self._tags = arm_tags | {"paribus.seed": str(run.seed), "paribus.run": run.key}
        if run.trial:
            self._tags["paribus.trial"] = "true"
        self.stages = [StageEntry(wanted, self.id, self._tags, stage) for stage in run.stages if stage.kind in OWN]

    @cached_property
    def source(self) -> str | None:
        """What `read` depends on; None until a stage is started."""
        states = [entry.look.state if entry.look else "" for entry in self.stages]
        names = [entry.name for entry in self.stages]
        busy = self._wanted.busy(self._run.key)
        return digest(json.dumps([states, names, busy, self._tags])) if any(states) else None

    @property
    def summary(self) -> Facts:
        """Outcome and times over the stages of a started run."""
        facts = [entry.facts for entry in self.stages if entry.look]
        outcomes = {fact.outcome for fact in facts}
        cut = next((word for word in ("diverged", "pruned") if word in outcomes), None)
        over = cut is not None or (outcomes == {"done"} and len(facts) == len(self.stages))
        if "running" in outcomes or (not over and self._wanted.busy(self._run.key)):
            outcome = "running"
        elif over:
            outcome = cut or "done"
        else:
            outcome = "missing"
        ends = [fact.end for fact in facts if fact.end is not None]
        end = max(ends) if outcome in OVER else None
        return Facts(outcome, min(fact.start for fact in facts), end, {})

    def read(self) -> Content:
        """What MLflow should hold."""
        summary, spec, seed = self.summary, self._run.arm.run, self._run.seed
        tags = {"paribus.kind": "run", **self._tags}
        for stage in self._run.stages:
            if stage.kind not in OWN:
                tags[f"paribus.stage.{_task_name(stage) or stage.kind}"] = stage.key
        resolved = spec.model_dump(mode="json") | {"seed": seed}
        artifacts = {"run.yaml": yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)}
        points: list[Point] = []
        for entry in self.stages:
            if entry.stage.kind != "finetune" and entry.finished:
                points += entry.measurements()
                if entry.stage.kind in ("pretrain", "import"):
                    tags |= entry.provenance_tags()
                    artifacts |= _environment(self._wanted.provenance(entry.facts.record["provenance"]))
        for task, at, chosen in self._chosen():
            tags |= {f"paribus.{name}.{task}": str(value) for name, value in at._asdict().items()}
            points += chosen
        params = params_of(spec) | {"seed": str(seed)}
        return Content(summary.outcome, summary.start, summary.end, tags, params, points, artifacts)

    def _chosen(self) -> Iterator[tuple[str, GridPoint, list[Point]]]:
        """For each task that is wholly fine-tuned: its name, the chosen point of its grid, its scores there.

        By the task's first metric, as the tables choose.
        """
        grids: dict[Task, dict[GridPoint, list[StageEntry]]] = {}
        for entry in self.stages:
            if isinstance(entry.stage.spec, TaskTuning):
                tuning = entry.stage.spec
                grids.setdefault(tuning.task, {}).setdefault(tuning.point, []).append(entry)
        for task, grid in grids.items():
            if all(entry.finished for restarts in grid.values() for entry in restarts):
                recipe = self._run.arm.run.finetuning.of(task)
                kept = {at: of for at, of in grid.items() if all(entry.facts.outcome == "done" for entry in of)}
                scores = {at: _summed_up(restarts, recipe.aggregate) for at, restarts in kept.items()}
                first = f"{recipe.choose_on}/{task.name}/{task.metrics[0]}"
                best = best_point({at: of[first].value for at, of in scores.items()})
                if best is not None:
                    yield task.name, best, list(scores[best].values())


class StageEntry:
    """A stage that belongs to one run: its learning curve, then its measurements."""

    def __init__(self, wanted: Wanted, parent: str, run_tags: dict[str, str], stage: Stage) -> None:
        self._wanted, self.parent, self.stage = wanted, parent, stage
        self._tags = run_tags | {"paribus.kind": stage.kind, "paribus.stage": stage.key}
        if task := _task_name(stage):
            self._tags["paribus.task"] = task
        self.name = task or stage.kind
        if isinstance(stage.spec, TaskTuning):
            at = stage.spec.point
            self.name = (
                f"{stage.spec.task.name} lr={at.lr:g} batch={at.batch_items} epochs={at.epochs} #{stage.spec.restart}"
            )
        self.id = digest(f"{parent}|{stage.key}|{self.name}")

    @property
    def look(self) -> Look | None:
        """The state of the stage; None if it is not started."""
        return self._wanted.look(self.stage.key)

    @property
    def facts(self) -> Facts:
        """Outcome and times of a started stage."""
        return self._wanted.facts(self.stage.key)

    @property
    def finished(self) -> bool:
        """Whether the store has the stage."""
        return self.look is not None and bool(self.facts.record)

    @property
    def source(self) -> str | None:
        """What `read` depends on; None until the stage is started."""
        return digest(json.dumps([self.look.state, self.look.curve, self._tags])) if self.look else None

    def read(self) -> Content:
        """What MLflow should hold."""
        facts = self.facts
        tags = dict(self._tags)
        points = [
            Point(key, float(value), point["step"], facts.start + point["step"])
            for point in self._wanted.curve(self.stage.key)
            for key, value in point.items()
            if key not in ("step", "time")
        ]
        if self.finished:
            tags |= self.provenance_tags()
            points += self.measurements()
        return Content(facts.outcome, facts.start, facts.end, tags, params_of(self.stage.spec), points, {})

    def measurements(self) -> list[Point]:
        """The rows of the finished stage, named split/subject/metric."""
        assert self.facts.end is not None
        subject = _task_name(self.stage) or {"evaluate": "mlm"}.get(self.stage.kind, self.stage.kind)
        return [
            Point("/".join(filter(None, (split, task or subject, metric))), float(value), 0, self.facts.end)
            for task, metric, split, value in self._wanted.rows(self.stage)
        ]

    def provenance_tags(self) -> dict[str, str]:
        """Which code made the finished stage."""
        found = self._wanted.provenance(self.facts.record["provenance"])
        return {
            "paribus.commit": found.get("commit") or "unknown",
            "paribus.dirty": json.dumps(found.get("dirty")),
            "paribus.version": found.get("paribus", "unknown"),
        }


Entry = ExperimentEntry | ArmEntry | RunEntry | StageEntry
"""What becomes an MLflow run: an id, its parent's, a name, the `source` it depends on, and `read` for the content."""


def _summed_up(restarts: Sequence[StageEntry], how: Literal["mean", "median"]) -> dict[str, Point]:
    """By name, the mean or median of each measurement over restarts."""
    by_key: dict[str, list[Point]] = {}
    for entry in restarts:
        for point in entry.measurements():
            by_key.setdefault(point.key, []).append(point)
    return {
        key: Point(
            key, over_restarts([point.value for point in points], how), 0, max(point.timestamp for point in points)
        )
        for key, points in by_key.items()
    }


def _task_name(stage: Stage) -> str | None:
    """What tables call the task of a stage that has one."""
    spec = stage.spec.task if isinstance(stage.spec, TaskTuning | PairTest) else stage.spec
    return spec.name if isinstance(spec, Task) else None


def _environment(provenance: dict[str, Any]) -> dict[str, str]:
    """environment.txt, in the form pip reads, and git.diff where there were changes."""
    about = [f"# {key}: {value}" for key, value in sorted(provenance.items()) if key not in ("packages", "diff")]
    packages = [f"{name}=={version}" for name, version in sorted(provenance.get("packages", {}).items())]
    found = {"environment.txt": "\n".join([*about, *packages]) + "\n"}
    return found | {"git.diff": provenance["diff"]} if provenance.get("dirty") else found
