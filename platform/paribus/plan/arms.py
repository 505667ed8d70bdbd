"""base x scale x factors to arms: each a complete Run, apart from the others in its levels only."""

import copy
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from paribus.errors import ParibusError, SpecError
from paribus.project import Project
from paribus.spec.experiment import GLUE_AVERAGES, Experiment, Factor, Patch
from paribus.spec.finetuning import FineTuning
from paribus.spec.load import apply, build, is_relative, suggest
from paribus.spec.run import Run

BASE = "base"
"""What several bases are as a factor: the key of their levels, baseline and label."""

Layers = list[tuple[str, Mapping[str, Any]]]
"""What an arm's base is patched with, in turn: what errors call the patch (its file and key, or --set), and it."""


@dataclass(frozen=True)
class Arm:
    """One combination of levels. `run` is complete but for the seed, which is 0."""

    label: str
    levels: Mapping[str, str]
    run: Run
    baseline: bool
    patches: Mapping[str, Patch] = field(default_factory=dict)
    """What each factor's level sets: the paths in which it may depart from another arm."""


def arms(project: Project, name: str, scale: str, overrides: Mapping[str, Any] | None = None) -> list[Arm]:
    """The arms of experiment `name` at `scale`, the baseline first. `overrides` (path to value) apply to every arm."""
    experiment = project.experiments.get(name)
    where = str(project.experiments.path(name))
    bases = experiment.bases_for(scale)
    for what, named in (("base", experiment.base), (f"base_at.{scale}", tuple(bases.values()))):
        _refuse_twice(named, "base", f"{where}: {what}")
    factors = {factor: project.factors.get(factor, where) for factor in experiment.factors}
    if len(bases) > 1:
        if BASE in factors:
            raise SpecError(f"{where}: factors: no factor may be called {BASE!r} where there are several bases")
        models = Factor(source="experiments/bases", base=experiment.base[0], levels=dict.fromkeys(bases, {}))
        factors = {BASE: models, **factors}
    chosen = {factor: _levels(experiment, factor, factors[factor], where) for factor in factors}
    baseline = {
        factor: _baseline(project, experiment, factor, factors[factor], chosen[factor], where) for factor in factors
    }
    for what, given in (("levels", experiment.levels), ("baseline", experiment.baseline)):
        for factor in given:
            if factor not in factors:
                raise SpecError(f"{where}: {what}.{factor}: not a factor of this experiment" + suggest(factor, factors))
    for what, named in (("factors", experiment.factors), ("tasks", experiment.tasks)):
        _refuse_twice(named, what.removesuffix("s"), f"{where}: {what}")
    _refuse_overlapping_factors(factors, where)
    protocols = experiment.protocol if isinstance(experiment.protocol, dict) else {}
    for what, at_scales in (("set_at", experiment.set_at), ("base_at", experiment.base_at), ("protocol", protocols)):
        for at in at_scales:
            project.scales.path(at, f"{where}: {what}")
    settings = [("set", experiment.set), (f"set_at.{scale}", experiment.set_at.get(scale, {}))]
    for said_by, patch in [*((f"{where}: {key}", patch) for key, patch in settings), ("--set", overrides or {})]:
        _refuse_overrides_of_factors(factors, patch, said_by)
        if experiment.tune:
            _refuse_overrides_of_what_is_tuned(patch, experiment.tune.path, said_by)
    if experiment.tune:
        _refuse_factors_of_what_is_tuned(factors, experiment.tune.path, where)

    common = {base: _common(project, experiment, name, scale, overrides or {}, where) for base, name in bases.items()}
    start = {base: _patched(data, layers) for base, (data, layers) in common.items()}
    found = []
    for levels in _combinations(experiment.design, chosen, baseline):
        base = levels.get(BASE, experiment.base[0])
        patches = {factor: factors[factor].levels[level] for factor, level in levels.items()}
        own: Layers = [(f"{project.factors.path(f)}: levels.{levels[f]}", patches[f]) for f in experiment.factors]
        data = _patched(start[base], own)
        label = _label(levels, baseline, experiment.design)
        try:
            run = _run(project, data)
        except ParibusError as error:
            layers = [(str(project.bases.path(bases[base])), {}), *common[base][1], *own]
            blamed = _to_blame(project, common[base][0], layers, error)
            raise type(error)(f"{blamed} (scale {scale}, arm {label}): {error}") from error
        if BASE in levels:  # a base is all of a run but what is measured
            patches[BASE] = {path: value for path, value in data.items() if path not in ("evaluation", "seed")}
        found.append(Arm(label, levels, run, levels == baseline, patches))
    return found


def base_at(project: Project, name: str, scale: str, where: str = "") -> dict[str, Any]:
    """The plain data of a base at a scale."""
    return _patched(project.base(name, where).model_dump(), _scaled(project, name, scale))


def _scaled(project: Project, name: str, scale: str) -> Layers:
    preset, path = project.scales.get(scale), project.scales.path(scale)
    return [(f"{path}: set", preset.set), (f"{path}: bases.{name}", preset.bases.get(name, {}))]


def _common(
    project: Project, experiment: Experiment, name: str, scale: str, overrides: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], Layers]:
    """What the arms of a base start from: its plain data; and scale, protocol, the experiment's own settings, --set."""
    data, layers = project.base(name, where).model_dump(), _scaled(project, name, scale)
    if named := experiment.protocol_for(scale):
        path = f"{project.protocols.path(named, f'{where}: protocol')}: finetuning"
        recipe = build(FineTuning, project.protocols.get(named).finetuning, path).model_dump()
        layers.append((path, {"finetuning": recipe}))
    layers += [(f"{where}: set", experiment.set), (f"{where}: set_at.{scale}", experiment.set_at.get(scale, {}))]
    if experiment.average:
        _refuse_what_lacks_of_an_average(project, experiment, where)
    tasks = [project.task(task, where).model_dump() for task in experiment.tasks]
    return data, [*layers, (f"{where}: tasks", {"evaluation.tasks": tasks}), ("--set", overrides)]


def _patched(data: dict[str, Any], layers: Layers) -> dict[str, Any]:
    found = copy.deepcopy(data)
    for said_by, patch in layers:
        apply(found, patch, said_by)
    return found


def _run(project: Project, data: dict[str, Any]) -> Run:
    """The complete run that plain data mean; errors name the key alone."""
    run = build(Run, data)
    _refuse_recipes_of_no_task(project, run)
    return project.pinned(run)


def _to_blame(project: Project, data: dict[str, Any], layers: Layers, error: ParibusError) -> str:
    """The layer that brought `error`: the last one without which it is not there."""

    def told(error: ParibusError) -> str:
        return re.sub(r" \(and \d+ more\)$", "", str(error))  # those may be other layers'

    for last in reversed(range(1, len(layers))):
        try:
            _run(project, _patched(data, layers[:last]))
        except ParibusError as before:
            if told(before) == told(error):
                continue
        return layers[last][0]
    return layers[0][0]


def _refuse_what_lacks_of_an_average(project: Project, experiment: Experiment, where: str) -> None:
    measured = {f"{name}.{metric}" for name in experiment.tasks for metric in project.task(name, where).metrics}
    for metric in chain.from_iterable(GLUE_AVERAGES[experiment.average or ""]):
        if metric not in measured:
            raise SpecError(
                f"{where}: average: {experiment.average!r} needs {metric}, which no task of `tasks` measures"
            )


def _refuse_twice(named: Sequence[str], noun: str, where: str) -> None:
    if len(set(named)) < len(named):
        raise SpecError(f"{where}: a {noun} is named twice: {', '.join(named)}")


def _refuse_recipes_of_no_task(project: Project, run: Run) -> None:
    """An exception for a task that exists nowhere is a misspelling; one for a task of another experiment is not."""
    for key, names in (("tasks", run.finetuning.tasks), ("start_from", run.finetuning.start_from)):
        for name in names:
            project.tasks.path(name, f"finetuning.{key}")


def _levels(experiment: Experiment, name: str, factor: Factor, where: str) -> Sequence[str]:
    wanted = experiment.levels.get(name, tuple(factor.levels))
    for level in wanted:
        if level not in factor.levels:
            raise SpecError(f"{where}: levels.{name}: no level {level!r}" + suggest(level, factor.levels))
    if not wanted:
        raise SpecError(f"{where}: levels.{name}: found none; there is {', '.join(factor.levels)}")
    _refuse_twice(wanted, "level", f"{where}: levels.{name}")
    return wanted


def _baseline(
    project: Project, experiment: Experiment, name: str, factor: Factor, levels: Sequence[str], where: str
) -> str:
    level = experiment.baseline.get(name, factor.base)
    if level not in factor.levels and name not in experiment.baseline:
        raise SpecError(f"{project.factors.path(name)}: base: no level {level!r}" + suggest(level, factor.levels))
    if level not in levels:
        raise SpecError(f"{where}: baseline.{name}: {level!r} is not among the levels that run: {', '.join(levels)}")
    return level


def _varied(factor: Factor) -> set[str]:
    """The paths a factor sets."""
    return {path for level in factor.levels.values() for path in level}


def _overlap(one: str, other: str) -> bool:
    """Whether setting one path touches the other."""
    return (one + ".").startswith(other + ".") or (other + ".").startswith(one + ".")


def spelled(overrides: Mapping[str, Any]) -> str:
    """Overrides as text, the same for all orders that mean the same: one that sets a kind means another after a field
    of it than before.
    """
    left, told = list(overrides), []
    while left:
        scopes = [path.removesuffix(".kind") for path in left]
        free = [path for i, path in enumerate(left) if not any(_overlap(scopes[i], other) for other in scopes[:i])]
        first = min(free)
        left.remove(first)
        told.append(f"{json.dumps(first)}: {json.dumps(overrides[first], sort_keys=True, default=str)}")
    return f"{{{', '.join(told)}}}"


def _refuse_overlapping_factors(factors: Mapping[str, Factor], where: str) -> None:
    """Of two factors that set one place the later would undo the earlier, under a label that says both."""
    for (one, first), (other, second) in itertools.combinations(factors.items(), 2):
        for path, same in itertools.product(sorted(_varied(first)), sorted(_varied(second))):
            if _overlap(path, same):
                raise SpecError(f"{where}: factors {one} and {other} both set {path if path == same else (path, same)}")


def _refuse_overrides_of_factors(
    factors: Mapping[str, Factor], overrides: Mapping[str, Any], where: str
) -> None:
    """An override of what a factor varies would undo the ablation in silence, and one of the seed would be lost."""
    for path in overrides:
        if path == "seed":
            raise SpecError(f"{where}: cannot set seed: an experiment runs seeds 0, 1, ...; say how many with `seeds`")
        if _overlap(path, "evaluation.tasks"):
            raise SpecError(f"{where}: cannot set {path}: name the tasks with `tasks: [...]` instead")
        for name, factor in factors.items():
            for varied in _replaced(factor):
                if _overlap(path, varied):
                    raise SpecError(
                        f"{where}: cannot set {path}: the factor {name} varies {varied}; "
                        f"choose its levels with `levels: {{{name}: [...]}}` instead"
                    )


def _refuse_overrides_of_what_is_tuned(overrides: Mapping[str, Any], tuned: str, where: str) -> None:
    for path, value in overrides.items():
        if _overlap(path, tuned) and not is_relative(value):
            raise SpecError(f"{where}: cannot set {path}: tune.path {tuned} is chosen for each arm by trials")


def _refuse_factors_of_what_is_tuned(factors: Mapping[str, Factor], tuned: str, where: str) -> None:
    for name, factor in factors.items():
        for varied in _replaced(factor):
            if _overlap(varied, tuned):
                raise SpecError(f"{where}: tune.path: cannot tune {tuned}: the factor {name} varies {varied}")


def _replaced(factor: Factor) -> set[str]:
    """The paths that levels set to a value of their own; what they multiply may be set and tuned all the same."""
    return {path for level in factor.levels.values() for path, value in level.items() if not is_relative(value)}


def _combinations(
    design: str, levels: Mapping[str, Sequence[str]], baseline: Mapping[str, str]
) -> list[dict[str, str]]:
    """Every arm's levels, the baseline first."""
    if design == "full":
        product = [dict(zip(levels, combination, strict=True)) for combination in itertools.product(*levels.values())]
        return sorted(product, key=lambda arm: arm != baseline)
    departures = [
        {**baseline, factor: level} for factor in levels for level in levels[factor] if level != baseline[factor]
    ]
    return [dict(baseline), *departures]


def _label(levels: Mapping[str, str], baseline: Mapping[str, str], design: str) -> str:
    """The level for one factor; else factor=level for what departs from the baseline, or 'baseline'."""
    if len(levels) == 1:
        return next(iter(levels.values()))
    departing = {factor: level for factor, level in levels.items() if design == "full" or level != baseline[factor]}
    return ", ".join(f"{factor}={level}" for factor, level in departing.items()) or "baseline"
