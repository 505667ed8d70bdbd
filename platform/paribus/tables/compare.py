"""`paribus compare`: two arms by name, and their certificate as a table."""

from collections.abc import Mapping
from typing import Any, Protocol

from paribus.errors import ParibusError
from paribus.files import read_cache
from paribus.jobs.runs import plan_asked
from paribus.plan.arms import Arm
from paribus.plan.estimate import costs
from paribus.plan.runs import at_seed
from paribus.plan.stages import Stages
from paribus.project import Project
from paribus.spec.load import suggest
from paribus.spec.run import Run
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables.certificate import ALLOWED, Certificate, Line, Side, certify, cost_of, percent, shown, side
from paribus.tables.table import Cell, Column, Row, Table


class Queued(Protocol):
    """A run as an experiment asked for it."""

    @property
    def key(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def experiment(self) -> str: ...
    @property
    def levels(self) -> Mapping[str, str]: ...
    @property
    def run(self) -> Run: ...


def of_arm(
    project: Project,
    store: Store,
    name: str,
    scale: str = "tiny",
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    beside: str = "",
) -> Side:
    """The arm called EXPERIMENT[@SCALE]:ARM; the label alone is one of the experiment of `beside`."""
    if ":" not in name:
        if ":" not in beside:
            raise ParibusError(f"compare {name}: expected EXPERIMENT:ARM, EXPERIMENT@SCALE:ARM or a run's key")
        name = f"{beside.partition(':')[0]}:{name}"
    place, _, label = name.partition(":")
    experiment, _, at = place.partition("@")
    planned = plan_asked(project, store, experiment, at or scale, seeds, overrides or {})
    arms = {arm.label: arm for arm in planned.arms}
    if label not in arms:
        raise ParibusError(f"{planned.name}: no arm is called {label!r}" + suggest(label, arms))
    costs(planned, project, store.root / "costs.json")
    return side(planned, arms[label], read_cache(store.root / "costs.json"), f"{planned.name}:{label}")


def of_run(project: Project, store: Store, queued: Queued) -> Side:
    """A single run as it was queued, whatever its experiment says by now."""
    patches = {}
    for factor, level in queued.levels.items():
        if factor in project.factors.paths:
            patches[factor] = project.factors.get(factor).levels.get(level, {})
    experiment = project.experiments.get(queued.experiment) if queued.experiment in project.experiments.paths else None
    tuned = experiment.tune.path if experiment and experiment.tune else None
    arm = Arm(queued.arm, queued.levels, queued.run, False, patches)
    seed = queued.run.seed
    cost = cost_of(queued.run, read_cache(store.root / "costs.json"))
    return Side(queued.key, arm, {seed: at_seed(arm, Stages(queued.run), seed)}, tuned, None, cost)


def compare(one: Side, other: Side, store: Store, allow: set[str]) -> Certificate:
    """The certificate of `one` against `other`; `allow` as for verdicts."""
    return certify(one, other, Finished(store, [*one.known.values(), *other.known.values()]), allow)


def table(found: Certificate) -> Table:
    """A certificate as a table: a row a line."""
    columns = [
        Column(key, label, "as printed", None, published=False)
        for key, label in (("status", "status"), ("one", found.one), ("other", found.other), ("change", "change"))
    ]
    rows = [Row(line.what, line.what, line.group, _cells(line)) for line in found.lines]
    verdict = "All else is equal: a verdict may be given."
    if found.refusal:
        verdict = f"Refused: {found.refusal}."
    elif found.unfinished:
        verdict = f"No verdict yet: no run of {' or '.join(found.unfinished)} is finished. What was asked for is equal."
    return Table(
        "compare",
        f"{found.one} against {found.other}",
        tuple(columns),
        tuple(rows),
        (
            verdict,
            *([found.rounding] if found.rounding else []),
            "declared: what the factor sets; follows: moved with it; shown: moves no number but by rounding, or was "
            f"admitted; UNDECLARED: refuses the verdict. `--allow {'|'.join(ALLOWED)}` admits what made the runs.",
            "Amounts are medians over the seeds that are done. Masked tokens: the rate times the tokens. FLOPs: of "
            "pretraining, forward and backward. Peak memory on a CPU is that of the worker's whole process.",
        ),
    )


def _cells(line: Line) -> tuple[Cell | None, ...]:
    change = percent(line.change) if line.change and line.group == "Amounts" else None
    texts = [line.status, shown(line.one), shown(line.other), change]
    return tuple(None if text is None else Cell(text) for text in texts)


def as_json(found: Certificate) -> dict[str, Any]:
    """A certificate as plain data."""
    lines = [
        {
            "group": line.group,
            "what": line.what,
            "one": _plain(line.one),
            "other": _plain(line.other),
            "status": line.status,
        }
        for line in found.lines
    ]
    told = {"refusal": found.refusal, "unfinished": list(found.unfinished), "mark": found.mark}
    return {"one": found.one, "other": found.other, **told, "lines": lines}


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
