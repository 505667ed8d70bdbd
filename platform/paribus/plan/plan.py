"""The plan of an experiment: its runs, their stages, what is shared; and why a stage is new."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paribus.errors import SpecError
from paribus.plan.arms import Arm, arms, spelled
from paribus.plan.runs import PlannedRun as PlannedRun
from paribus.plan.runs import at_seed
from paribus.plan.stages import VERSIONS, Stage, Stages
from paribus.plan.tuning import Results, Tuning, resolve, tuning
from paribus.project import Project
from paribus.spec.base import digest
from paribus.spec.experiment import UNITS, Experiment
from paribus.spec.load import suggest


@dataclass(frozen=True)
class Plan:
    """Everything an experiment asks for at one scale."""

    name: str
    """experiment@scale: also the Optuna study and the MLflow experiment."""
    experiment_name: str
    experiment: Experiment
    scale: str
    overrides: Mapping[str, Any]
    arms: list[Arm]
    """A tuned arm has the chosen value as soon as it is chosen."""
    seeds: int
    runs: list[PlannedRun] = field(repr=False)
    """Those that report. A tuned arm's are known when its trials are done."""
    tunings: list[Tuning] = field(repr=False, default_factory=list)
    """One an arm, if the experiment tunes something."""

    @property
    def label(self) -> str:
        """`name`; with overrides it is another experiment's, which must not take the place of the own one."""
        if not self.overrides:
            return self.name
        return f"{self.name}+{digest(spelled(self.overrides))[:6]}"

    @property
    def command(self) -> str:
        """What was typed for it, after `paribus run`."""
        return f"{self.experiment_name} --scale {self.scale}{self.options}"

    @property
    def options(self) -> str:
        """What was typed for it besides its name and scale, each with a space before it."""
        seeds = f" --seeds {self.seeds}" if self.seeds != self.experiment.seeds else ""
        return seeds + "".join(f" --set {path}={value}" for path, value in self.overrides.items())

    @property
    def baseline(self) -> Arm:
        """The arm the others are compared with."""
        return self.arms[0]

    @property
    def trials(self) -> list[PlannedRun]:
        """The tuning runs that are known so far. None of them is in a table."""
        return [trial.run for tuning in self.tunings for trial in tuning.trials]

    @property
    def known(self) -> list[PlannedRun]:
        """Every run that is known so far, trials first."""
        return [*self.trials, *self.runs]

    @property
    def untuned(self) -> list[Arm]:
        """The arms whose runs will be known when their tuning is done."""
        return [arm for arm, tuning in zip(self.arms, self.tunings, strict=False) if tuning.best is None]

    def stages(self) -> Iterator[Stage]:
        """Each stage once, in an order in which inputs come first."""
        seen: set[str] = set()
        for run in self.known:
            for stage in run.stages:
                if stage.key not in seen:
                    seen.add(stage.key)
                    yield stage


def plan(
    project: Project,
    name: str,
    scale: str,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    results: Results | None = None,
) -> Plan:
    """The plan of experiment `name` at `scale`; `seeds` replaces the experiment's own number.

    `results` (the store) says what became of tuning trials; without it, no arm is tuned yet.
    """
    experiment = project.experiments.get(name)
    count = seeds or experiment.seeds
    found = arms(project, name, scale, overrides)
    _refuse_rows_that_are_not_there(project, name, [arm.label for arm in found], scale)
    _refuse_what_is_not_measured(experiment, found, str(project.experiments.path(name)))
    _refuse_arms_that_do_not_compare(project, name, found, [Stages(arm.run) for arm in found])
    tunings: list[Tuning] = []
    if experiment.tune:
        where = f"{project.experiments.path(name)}: tune"
        if experiment.tune.seed < count:
            raise SpecError(f"{where}.seed: found {experiment.tune.seed}, but seeds 0 to {count - 1} are reported")
        for arm in found:
            if arm.run.pretrained:
                raise SpecError(f"{where}: arm {arm.label!r} is imported, not pretrained, so there is nothing to tune")
        reported = {arm.run.seed_offset + seed: arm.label for arm in found for seed in range(count)}
        for arm in found:
            if other := reported.get(seed := arm.run.seed_offset + experiment.tune.seed):
                raise SpecError(
                    f"{where}.seed: found {experiment.tune.seed}; with its seed_offset arm {arm.label!r} would be "
                    f"tuned at seed {seed}, which arm {other!r} reports"
                )
        tunings = [tuning(arm, resolve(experiment.tune, arm, where), results) for arm in found]
        found = [each.tuned or each.arm for each in tunings]
    ready = [arm for arm, each in zip(found, tunings, strict=True) if each.best] if tunings else found
    makers = [Stages(arm.run) for arm in ready]
    # Seed by seed, so that a queue worked in this order has every arm once before any arm twice.
    runs = []
    for seed in range(count):
        runs += [at_seed(arm, maker, seed) for arm, maker in zip(ready, makers, strict=True)]
    if len({run.key for run in runs}) < len(runs):
        raise SpecError(
            f"{project.experiments.path(name)}: arms share runs: their seed_offset must lie at least {count} apart, as "
            "many as there are seeds"
        )
    return Plan(f"{name}@{scale}", name, experiment, scale, overrides or {}, found, count, runs, tunings)


def again(plan_: Plan, project: Project, results: Results) -> Plan:
    """The plan anew where trials that ended since may have made more of it known; else the plan itself."""
    if not plan_.untuned:
        return plan_
    return plan(project, plan_.experiment_name, plan_.scale, plan_.seeds, plan_.overrides, results)


def _refuse_rows_that_are_not_there(project: Project, name: str, labels: list[str], scale: str) -> None:
    where, experiment = f"{project.experiments.path(name)}: reproduces", project.experiments.get(name)
    for table, named in experiment.reproduces.items():
        paper = project.tables.get(table, where)
        rows = [row.key for row in paper.systems]
        differences = {row.key for row in paper.rows}.difference(rows)
        for label, said in named.items():
            if label not in labels:
                raise SpecError(f"{where}.{table}: no arm {label!r}" + suggest(label, labels))
            for at in {} if isinstance(said, str) else said.keys() - {"default"}:
                project.scales.path(at, f"{where}.{table}.{label}")
            for row in [said] if isinstance(said, str) else filter(None, said.values()):
                if row not in rows:
                    found = "is a difference of others" if row in differences else "is not in the table"
                    raise SpecError(f"{where}.{table}.{label}: row {row!r} {found}" + suggest(row, rows))
        taken: dict[str, str] = {}
        for label in labels:
            row = (experiment.row_of(table, label, scale) or "").lower().replace("-", "_")
            if row in rows and taken.setdefault(row, label) != label:
                raise SpecError(f"{where}.{table}: arms {taken[row]!r} and {label!r} both take the row {row!r}")


def _refuse_what_is_not_measured(experiment: Experiment, found: list[Arm], where: str) -> None:
    """An effect of interest or a claim about a column that no table has would be lost in silence."""
    tasks = [f"{task.name}.{task.metrics[0]}" for task in found[0].run.evaluation.tasks]
    columns = [*UNITS, *tasks, *(["average"] if experiment.average else [])]
    labels = [arm.label for arm in found[1:]]
    for key in experiment.sesoi:
        if key not in (known := [*columns, *sorted(set(UNITS.values()))]):
            raise SpecError(f"{where}: sesoi.{key}: no such column or unit" + suggest(key, known))
    for index, claim in enumerate(experiment.claims):
        if claim.metric not in columns:
            raise SpecError(
                f"{where}: claims.{index}.metric: no column {claim.metric!r}" + suggest(claim.metric, columns)
            )
        if claim.arm not in labels:
            raise SpecError(
                f"{where}: claims.{index}.arm: no arm {claim.arm!r} beside the baseline" + suggest(claim.arm, labels)
            )


def _refuse_arms_that_do_not_compare(project: Project, name: str, found: list[Arm], makers: list[Stages]) -> None:
    """Two arms of one content would be one run under two labels: a difference of exactly nothing. And arms with other
    tasks have no columns in common.
    """
    tasks = [[task.name for task in arm.run.evaluation.tasks] for arm in found]
    if other := next((arm for arm, names in zip(found, tasks, strict=True) if names != tasks[0]), None):
        raise SpecError(
            f"{project.experiments.path(name)}: arm {other.label!r} has other evaluation.tasks than the baseline; "
            "expected the same of all, as `tasks` of the experiment says them"
        )
    seen: dict[str, str] = {}
    for arm, maker in zip(found, makers, strict=True):
        content = ",".join(stage.key for stage in maker.at(0))
        if content in seen:
            raise SpecError(
                f"{project.experiments.path(name)}: arms {seen[content]!r} and {arm.label!r} resolve to the same run; "
                "their levels set nothing that differs here"
            )
        seen[content] = arm.label


def why(stage: Stage, finished: Iterable[Mapping[str, Any]]) -> list[str]:
    """What sets `stage` apart from the nearest other one of its kind (`finished`: what stage.json files say)."""
    told = flatten(stage.spec.model_dump(mode="json"))
    told["seed"] = stage.seed
    nearest: tuple[list[str], str] | None = None
    for other in finished:
        if other["kind"] != stage.kind or other["key"] == stage.key:
            continue
        before = flatten(other["spec"])
        before["seed"] = other["seed"]
        lines = [
            f"{path}: {before.get(path, 'absent')} -> {told.get(path, 'absent')}"
            for path in sorted(told.keys() | before.keys())
            if told.get(path) != before.get(path)
        ]
        if other["version"] != VERSIONS[stage.kind]:
            lines.append(f"version of the {stage.kind} code: {other['version']} -> {VERSIONS[stage.kind]}")
        lines += [
            f"input {role}: {other['inputs'].get(role, 'absent')} -> {key}"
            for role, key in stage.inputs.items()
            if other["inputs"].get(role) != key
        ]
        if nearest is None or len(lines) < len(nearest[0]):
            nearest = lines, other["key"]
    if nearest is None:
        return [f"no other {stage.kind} is finished yet"]
    return [f"nearest finished stage: {nearest[1]}", *nearest[0]]


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested plain data as dotted path to scalar."""
    if not isinstance(data, dict | list | tuple):
        return {prefix: data}
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return found
