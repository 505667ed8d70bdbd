"""The certificate of a comparison: what differs between two arms, and whether anything may that nobody declared.

Compared are the resolved runs, path by path; what their stages recorded: code, libraries, cards, tokens, cost; and how
often each was repeated and tuned. Runs are compared seed by seed, as differences are taken, so code that changed
between two seeds of both arms is no confounder, and code that changed between the arms is.
"""

import importlib.metadata
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, Literal, NamedTuple

import polars as pl

from paribus.files import read_cache
from paribus.plan.arms import BASE, Arm
from paribus.plan.estimate import Cost, cost_key, costs
from paribus.plan.plan import Plan, flatten
from paribus.plan.runs import PlannedRun
from paribus.plan.stages import Stage
from paribus.project import Project
from paribus.spec.base import canonical
from paribus.spec.run import Run
from paribus.spec.task import Task
from paribus.store.index import Finished
from paribus.store.store import Store

Status = Literal["equal", "declared", "follows", "shown", "UNDECLARED"]
"""declared: what the factor sets. follows: moved with it. shown: for the reader; it moves no number but a clock's or by
rounding, or is not known of both."""

ALLOWED = ("code", "libraries", "card")
"""What a user may admit: lines of the certificate that are then only shown."""

# Of what moved with the factor, what the short mark names.
MARKED = ("parameters", "FLOPs", "tokens", "masked tokens", "updates")
# What says something of the machine and its neighbours, and is never held against an arm.
CLOCKS = ("pretraining, seconds", "peak memory (MiB)")

STEPS = "steps"
"""The line on how the steps of trainings were computed: `--compile` as it was done, `--sdpa` as it was asked for."""


@dataclass(frozen=True)
class Line:
    """One thing of both sides, in the first and in the second."""

    group: str
    what: str
    one: Any
    other: Any
    status: Status

    @property
    def change(self) -> float | None:
        """The first over the second, less 1; None where that is no number."""
        numbers = isinstance(self.one, int | float) and isinstance(self.other, int | float)
        return self.one / self.other - 1 if numbers and self.other else None


@dataclass(frozen=True)
class Side:
    """An arm as it stands: its planned runs by seed, the trials that tuned it, and how many ended (None: not tuned)."""

    name: str
    arm: Arm
    runs: Mapping[int, PlannedRun]
    tuned: str | None = None
    """The path that was tuned."""
    trials: int | None = None
    cost: Cost | None = None
    tuning: Sequence[PlannedRun] = ()

    @property
    def known(self) -> dict[int | str, PlannedRun]:
        """Its runs by seed, and its trials by what they are called."""
        found: dict[int | str, PlannedRun] = dict(self.runs.items())
        return found | {f"trial {number}": run for number, run in enumerate(self.tuning)}

    def done(self, finished: Finished) -> list[int]:
        """The seeds whose runs are finished and did not diverge."""
        return [
            seed
            for seed, run in sorted(self.runs.items())
            if all(stage.key in finished.records for stage in run.stages)
            and finished.records[run.pretrained.key]["outcome"] == "done"
        ]


@dataclass(frozen=True)
class Certificate:
    """What differs between `one` and `other`."""

    one: str
    other: str
    lines: tuple[Line, ...]
    programs: frozenset[str]
    """Those that made the runs of both."""
    unfinished: tuple[str, ...] = ()
    """Those of the two of which no run is finished, so that little of them is known."""
    another_base: bool = False
    """Whether they are whole models that differ, so that it is never a single thing."""

    @property
    def undeclared(self) -> list[Line]:
        """What differs and should not."""
        return [line for line in self.lines if line.status == "UNDECLARED"]

    @property
    def refusal(self) -> str | None:
        """Why there is no verdict, in a sentence; None where all else is equal."""
        if not self.undeclared:
            return None
        told = (f"{line.what} ({shown(line.one)} against {shown(line.other)})" for line in self.undeclared[:3])
        more = f" and {len(self.undeclared) - 3} more" if len(self.undeclared) > 3 else ""
        return f"{self.one} and {self.other} also differ in {', '.join(told)}{more}"

    @property
    def rounding(self) -> str | None:
        """That steps of the two were computed in different ways, in a sentence; None where they were not."""
        for line in self.lines:
            if line.what == STEPS and line.status == "shown":
                ways = f"{shown(line.one)} against {shown(line.other)}"
                if line.one == line.other:
                    ways = "not seed by seed"
                return (
                    f"Steps of {self.one} and {self.other} were computed in different ways ({ways}), "
                    "which may move numbers by rounding and by where dropout falls."
                )
        return None

    @property
    def mark(self) -> str:
        """In a few characters: only the factor differs, what moved with it (the two largest changes), or what not."""
        if self.undeclared:
            more = f" +{len(self.undeclared) - 1}" if len(self.undeclared) > 1 else ""
            return f"✗ {self.undeclared[0].what}{more}"
        moved = [line for line in self.lines if line.what in MARKED and line.status == "follows" and line.change]
        largest = sorted(moved, key=lambda line: -abs(line.change or 0))[:2]
        told = [f"{line.what} {percent(line.change or 0)}" for line in largest]
        if self.another_base:
            told.insert(0, "another base")
        if self.rounding:
            told.append(STEPS)
        return f"~ {', '.join(told)}" if told else "✓"


def percent(change: float) -> str:
    """A relative change with its sign, in whole per cent, or as a factor where it is large."""
    if change >= 2:
        return f"x {1 + change:.3g}"
    return f"{100 * change:+.1f} %" if abs(change) < 0.095 else f"{100 * change:+.0f} %"


def shown(value: Any) -> str:
    """A value of a line as text."""
    if value is None:
        return "-"
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(shown, value))) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 1e6 or abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)


# --- the sides -------------------------------------------------------------------------------------------------------


def side(plan: Plan, arm: Arm, known: Mapping[str, Any], name: str | None = None) -> Side:
    """An arm of `plan`; `known`: costs by their key. `name` is what it is called, if not by its label."""
    found = next((tuning for tuning in plan.tunings if tuning.arm.label == arm.label), None)
    trials, ended = ([trial.run for trial in found.trials], found.done) if found else ([], None)
    runs = {run.seed: run for run in plan.runs if run.arm.label == arm.label}
    tune = plan.experiment.tune
    path = tune.path if tune else None
    return Side(name or arm.label, arm, runs, path, ended, cost_of(arm.run, known), trials)


def cost_of(run: Run, known: Mapping[str, Any]) -> Cost | None:
    """What a run costs, where that was counted before."""
    found = known.get(cost_key(run))
    return Cost(**found) if found else None


def count_costs(plan: Plan, project: Project, store: Store) -> None:
    """Have what certificates say of parameters and FLOPs counted, where anything is finished: whoever planned before,
    in whatever store, a table says the same."""
    done = store.keys()
    if any(run.pretrained.key in done for run in plan.runs):
        costs(plan, project, store.root / "costs.json")


def certificates(plan: Plan, finished: Finished, allow: Collection[str] = ()) -> dict[str, Certificate]:
    """That of each arm but the baseline against the baseline, by label, for arms of which something is finished."""
    known = read_cache(finished.store.root / "costs.json")
    baseline = side(plan, plan.baseline, known)
    arms = [side(plan, arm, known) for arm in plan.arms[1:]]
    begun = [arm for arm in arms if any(run.pretrained.key in finished.records for run in arm.runs.values())]
    return {arm.name: certify(arm, baseline, finished, allow) for arm in begun}


# --- the comparison --------------------------------------------------------------------------------------------------


def certify(one: Side, other: Side, finished: Finished, allow: Collection[str] = ()) -> Certificate:
    """Compare two sides. `finished`: of the stages of both; `allow`: some of ALLOWED."""
    declared = _declared(one, other)
    planned = [_planned(side) for side in (one, other)]
    made = [_made(side, finished, planned[0] - planned[1] + (planned[1] - planned[0])) for side in (one, other)]
    lines = [
        *_settings(one, other, declared),
        *_repeats(one, other, finished),
        *_data(one, other),
        *_amounts(one, other, declared, finished),
        *_environment(made, finished),
    ]
    return Certificate(
        one.name,
        other.name,
        tuple(
            Line(line.group, line.what, line.one, line.other, "shown")
            if line.what in allow and line.status == "UNDECLARED"
            else line
            for line in lines
        ),
        frozenset(
            code for each in made for ways in set(each.values()) for way in ways for code in _code(finished, way)
        ),
        tuple(side.name for side in (one, other) if not side.done(finished)),
        one.arm.levels.get(BASE) != other.arm.levels.get(BASE),
    )


def _declared(one: Side, other: Side) -> set[str]:
    """The paths that the factors set in which the sides take different levels, and what both tuned."""
    found = {one.tuned} if one.tuned and one.tuned == other.tuned else set()
    for factor in one.arm.levels.keys() | other.arm.levels.keys():
        if one.arm.levels.get(factor) != other.arm.levels.get(factor):
            found |= {*one.arm.patches.get(factor, ()), *other.arm.patches.get(factor, ())}
    return found


def _content(run: Run) -> dict[str, Any]:
    """A resolved run as path to value: what is hashed, without the seed; tasks by name."""
    data: dict[str, Any] = json.loads(canonical(run))
    del data["seed"]
    names = [task.name for task in run.evaluation.tasks]
    data["evaluation"]["tasks"] = dict(zip(names, data["evaluation"]["tasks"], strict=True))
    return flatten(data)


def _settings(one: Side, other: Side, declared: Collection[str]) -> Iterable[Line]:
    """Where the resolved runs differ. Tasks that one side does not have are no part of a comparison."""
    mine, theirs = _content(one.arm.run), _content(other.arm.run)
    tasks = {task.name for task in one.arm.run.evaluation.tasks} ^ {t.name for t in other.arm.run.evaluation.tasks}
    equal = 0
    if bool(one.arm.run.pretrained) != bool(other.arm.run.pretrained):
        first, second = ("imported" if side.arm.run.pretrained else "pretrained here" for side in (one, other))
        yield Line("Settings", "origin", first, second, "UNDECLARED")
    for path in dict.fromkeys([*theirs, *mine]):
        if path in mine and path in theirs and mine[path] == theirs[path]:
            equal += 1
        elif path.startswith("evaluation.tasks.") and path.split(".")[2] in tasks:
            continue
        else:
            status = _status(path, declared, both=path in mine and path in theirs)
            yield Line("Settings", path, mine.get(path, "absent"), theirs.get(path, "absent"), status)
    yield Line("Settings", "all other settings", equal, equal, "equal")


def _status(path: str, declared: Collection[str], both: bool) -> Status:
    if any((path + ".").startswith(parent + ".") for parent in declared):
        return "declared"
    # Another kind brings fields of its own and drops those of the old one.
    kinds = [parent.removesuffix("kind") for parent in declared if parent.endswith(".kind")]
    return "follows" if not both and any(path.startswith(kind) for kind in kinds) else "UNDECLARED"


def _repeats(one: Side, other: Side, finished: Finished) -> Iterable[Line]:
    """Seeds that were asked for and that are done, and trials of the tuning."""
    asked = [sorted(side.runs) for side in (one, other)]
    done = [set(side.done(finished)) for side in (one, other)]
    yield Line("Repeats", "seeds", asked[0], asked[1], _equal(*asked))
    if asked[0] == asked[1]:
        missing = [[seed for seed in asked[0] if seed not in seeds] for seeds in done]
        yield Line("Repeats", "missing seeds", missing[0], missing[1], _equal(*missing))
    if one.tuned or other.tuned:
        yield Line("Repeats", "tuning trials", one.trials, other.trials, _equal(one.trials, other.trials))


def _data(one: Side, other: Side) -> Iterable[Line]:
    """What is trained on, which the settings above explain, and the items that are scored, which must be the same."""
    first = [next(iter(side.runs.values())).stages if side.runs else [] for side in (one, other)]
    mine, theirs = ({stage.key: stage for stage in stages} for stages in first)
    for kind, what in (("corpus", "corpus"), ("vocabulary", "vocabulary"), ("pack", "held-out rows")):
        keys = [next((key for key, stage in stages.items() if stage.kind == kind), None) for stages in (mine, theirs)]
        yield Line("Data", what, keys[0], keys[1], "equal" if keys[0] == keys[1] else "follows")
    tasks = [
        {stage.spec.name: key for key, stage in stages.items() if isinstance(stage.spec, Task)}
        for stages in (mine, theirs)
    ]
    for name in sorted(tasks[0].keys() & tasks[1].keys()):
        keys = [each[name] for each in tasks]
        yield Line("Data", f"evaluation set {name}", keys[0], keys[1], _equal(*keys))


def _amounts(one: Side, other: Side, declared: Collection[str], finished: Finished) -> Iterable[Line]:
    """How large, how much, how long: medians over the seeds. Tokens and updates may move with a budget only."""
    mine, theirs = (_measures(side, finished) for side in (one, other))
    imported = bool(one.arm.run.pretrained or other.arm.run.pretrained)
    budget = imported or any(path.startswith("budget") for path in declared)
    for what in mine:
        status: Status = "follows"
        if what in CLOCKS or None in (mine[what], theirs[what]):
            status = "shown"
        elif mine[what] == theirs[what]:
            status = "equal"
        elif what in ("tokens", "updates", "tokens an update") and not budget:
            status = "UNDECLARED"
        yield Line("Amounts", what, mine[what], theirs[what], status)


def _measures(side: Side, finished: Finished) -> dict[str, float | None]:
    keys = [run.pretrained.key for run in side.runs.values()]
    done = [key for key in keys if finished.records.get(key, {}).get("outcome") == "done"]
    records = [finished.records[key] for key in done]
    of_pretraining = finished.rows.filter(pl.col("key").is_in(done))
    rows = dict(of_pretraining.group_by("metric").agg("value").iter_rows())

    def over(found: Iterable[float | None]) -> float | None:
        known = [value for value in found if value is not None]
        middle = median(known) if known else None
        return int(middle) if middle and middle.is_integer() else middle  # counts are read as such

    run, cost = side.arm.run, side.cost
    tokens = over(rows.get("tokens", ()))
    return {
        "parameters": over(rows.get("parameters", ())) if rows or not cost else cost.parameters,
        "parameters, non-embedding": cost.parameters - cost.embedding if cost else None,
        "FLOPs": cost.train_flops_a_token * tokens if cost and tokens else None,
        "tokens": tokens,
        "masked tokens": run.objective.rate * tokens if tokens else None,
        "updates": over(rows.get("updates", ())),
        "tokens an update": None if run.pretrained else run.budget.batch_tokens,
        "pretraining, seconds": over(each["seconds"] for each in records),
        "peak memory (MiB)": over(each["peak_memory_mb"] for each in records),
    }


# --- code, libraries, cards ------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How a stage was made, by its record: the digest of its provenance, what computed it, how fp32 products were
    taken, how steps of a training were computed."""

    provenance: str
    device: str | None
    driver: str | None
    matmul: str | None
    compile: str | None
    sdpa: str | None


Made = dict[tuple[int | str, str, str | None, int | None], frozenset[Way]]
"""A seed or trial, a kind of stage, its task, and which of those stages (None: all of them) to how it was made."""


def _environment(made: Sequence[Made], finished: Finished) -> Iterable[Line]:
    """What made the runs: compared seed by seed, trial by trial and stage by stage, where both sides have it."""
    both = made[0].keys() & made[1].keys()
    pairs = {(made[0][at], made[1][at]) for at in both if made[0][at] != made[1][at]}
    for what, of in OF_WAY.items():
        told = cache(lambda ways, of=of: frozenset(itertools.chain.from_iterable(of(finished, way) for way in ways)))
        moved = {item for mine, theirs in pairs for item in told(mine) ^ told(theirs)}
        if what == STEPS:  # what one side's records do not say is not known to differ
            known = [_said(item for pair in pairs for item in told(pair[i])) for i in (0, 1)]
            moved = {item for item in moved if item.partition(" ")[0] in known[0] & known[1]}
        if what == "libraries":
            moved = {item for item in moved if _matters(item.partition(" ")[0])}
        if moved:
            mine, theirs = (frozenset(item for pair in pairs for item in told(pair[i]) & moved) for i in (0, 1))
            yield Line("Made by", what, mine, theirs, "UNDECLARED" if what in ALLOWED else "shown")
        else:
            all_ = [frozenset(item for ways in set(each.values()) for item in told(ways)) for each in made]
            short = "the same" if what == "libraries" else None
            yield Line("Made by", what, short or all_[0], short or all_[1], "equal")


def _said(items: Iterable[str]) -> set[str]:
    """What the items, each `NAME VALUE`, are of."""
    return {item.partition(" ")[0] for item in items}


Kinds = Counter[tuple[int | str, str, str | None]]
"""How many stages there are of a seed or trial, a kind and a task."""


def _kind(stage: Stage) -> tuple[str, str | None]:
    """The kind of a stage, and its task."""
    task: Task | None = stage.spec if isinstance(stage.spec, Task) else getattr(stage.spec, "task", None)
    return stage.kind, task.name if task else None


def _planned(side: Side) -> Kinds:
    return Counter((at, *_kind(stage)) for at, run in side.known.items() for stage in run.stages)


def _made(side: Side, finished: Finished, uneven: Kinds) -> Made:
    """How each of its stages was made; also all of those together of which the other side has more or fewer."""
    found: Made = {}
    alone = cache(lambda way: frozenset([way]))
    places: Kinds = Counter()
    for at, run in side.known.items():
        for stage in run.stages:
            of = at, *_kind(stage)
            place, places[of] = places[of], places[of] + 1
            if record := finished.records.get(stage.key):
                way = alone(Way(*(record[name] for name in Way._fields)))
                found[*of, place] = way
                if of in uneven:
                    found[*of, None] = found.get((*of, None), way) | way
    return found


def _provenance(finished: Finished, digest: str) -> dict[str, Any]:
    # Without what it stands for, the digest alone still tells one from another.
    return finished.provenance(digest) or {"code": digest, "python": digest}


def _code(finished: Finished, way: Way) -> list[str]:
    """The program by its digest; where that is not recorded, by commit and changes."""
    found = _provenance(finished, way.provenance)
    return [str(found["code"])] if found.get("code") else _commit(finished, way)


def _commit(finished: Finished, way: Way) -> list[str]:
    found = _provenance(finished, way.provenance)
    return [f"{found.get('commit', '')[:9] or 'none'}{' with changes' if found.get('diff') else ''}"]


def _libraries(finished: Finished, way: Way) -> list[str]:
    found = _provenance(finished, way.provenance)
    return [f"python {found.get('python')}", *(f"{name} {v}" for name, v in found.get("packages", {}).items())]


def _card(finished: Finished, way: Way) -> list[str]:
    told = [way.device, way.driver and f"driver {way.driver}", way.matmul and f"fp32 products {way.matmul}"]
    return [", ".join(filter(None, told))] if way.device else []


def _host(finished: Finished, way: Way) -> list[str]:
    return [_provenance(finished, way.provenance).get("host", "")]


def _steps(finished: Finished, way: Way) -> list[str]:
    return [f"{what} {how}" for what, how in (("compile", way.compile), ("sdpa", way.sdpa)) if how]


OF_WAY: Mapping[str, Callable[[Finished, Way], list[str]]] = {
    "code": _code,
    "commit": _commit,
    "libraries": _libraries,
    "card": _card,
    "host": _host,
    STEPS: _steps,
}
"""What the certificate says of ways."""


def _matters(name: str) -> bool:
    """Whether a package can move a number: what paribus runs on, and what comes with a GPU's torch."""
    needed, name = required(), _normal(name)
    return not needed or name == "python" or name in needed or name.startswith(("nvidia-", "cuda-", "triton"))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def required() -> frozenset[str]:
    """The packages that paribus needs to run, and those they need; empty where it is not installed as a package."""
    found: set[str] = set()
    waiting = ["paribus"]
    while waiting:
        try:
            needs = importlib.metadata.requires(waiting.pop()) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        names = {_normal(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in needs if "extra ==" not in need}
        waiting += names - found
        found |= names
    return frozenset(found)


def _equal(one: Any, other: Any) -> Status:
    return "equal" if one == other else "UNDECLARED"


def foot(certificates: Mapping[str, Certificate], allow: Collection[str] = ()) -> list[str]:
    """What a table says below it: refusals, what was admitted, and by how many programs its runs were made."""
    notes = [f"No verdict: {found.refusal}." for found in certificates.values() if found.refusal]
    for name in sorted(allow):
        arms = [
            arm
            for arm, found in certificates.items()
            if any(line.what == name and line.status == "shown" for line in found.lines)
        ]
        if arms:
            notes.append(f"Admitted (--allow {name}) though the baseline's differ: {name} of {', '.join(arms)}.")
    notes += [note for found in certificates.values() if (note := found.rounding)]
    made = {program for found in certificates.values() for program in found.programs}
    if len(made) > 1:
        code = [line.status for found in certificates.values() for line in found.lines if line.what == "code"]
        same = "; what is compared, stage by stage by the same one" if set(code) == {"equal"} else ""
        notes.append(f"Made by {len(made)} programs: {', '.join(sorted(made))}{same}.")
    return notes
