"""What a page of an experiment shows: gathered once from its plan and the store, drawn in charts and web."""

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from paribus.plan.plan import Plan, PlannedRun
from paribus.project import Project
from paribus.spec.table import PaperTable
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables.certificate import Certificate, certificates, count_costs
from paribus.tables.experiment import experiment_table
from paribus.tables.frame import states
from paribus.tables.render.digits import short
from paribus.tables.table import Table

LABEL = 32
PARTS = {
    "pretrain": "pretraining",
    "evaluate": "evaluation",
    "minimal-pairs": "minimal pairs",
    "finetune": "fine-tuning",
}


@dataclass(frozen=True)
class Content:
    """One experiment at one scale, and what its queue knows.

    `failed`: the keys of the runs that it has given up on; `finished`: the key of a run that is done to its seed.
    """

    plan: Plan
    store: Store
    project: Project
    failed: Collection[str] = ()
    finished: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def table(self) -> Table:
        """Its table."""
        return self.beside(self.project.paper(self.plan.experiment))

    def beside(self, paper: PaperTable | None) -> Table:
        """Its runs beside a table that it reproduces."""
        return experiment_table(
            self.plan,
            self.store,
            paper,
            self.failed,
            finished=self.finished,
            stages=self.stages,
            compared=self.certificates,
        )

    @cached_property
    def stages(self) -> Finished:
        """Its finished stages, of one moment for all that is shown."""
        return Finished(self.store, self.plan.known)

    @cached_property
    def short(self) -> Mapping[str, str]:
        """Arm to a name of at most LABEL characters that no other arm has, for where there is little room."""
        return short([arm.label for arm in self.plan.arms], LABEL)

    @cached_property
    def certificates(self) -> Mapping[str, Certificate]:
        """Arm to what differs between it and the baseline."""
        count_costs(self.plan, self.project, self.store)
        return certificates(self.plan, self.stages)

    @cached_property
    def states(self) -> Mapping[tuple[str, int], str]:
        """(arm, seed) to what `paribus.tables.frame.states` calls it, or 'running'."""
        found = states(self.plan, self.stages, self.failed)
        for run in self.plan.runs:
            at = run.arm.label, run.seed
            if found[at] == "missing" and self.store.worker(run.key):
                found[at] = "running"
        return {(arm.label, seed): found[arm.label, seed] for arm in self.plan.arms for seed in range(self.plan.seeds)}

    @cached_property
    def runs(self) -> Mapping[tuple[str, int], PlannedRun]:
        """(arm, seed) to the run; a run whose arm is still being tuned is not known."""
        return {(run.arm.label, run.seed): run for run in self.plan.runs}

    @property
    def learns(self) -> bool:
        """Whether there is a learning curve; to read them all takes longer."""
        keys = (run.pretrained.key for run in self.plan.runs if not run.arm.run.pretrained)
        return any(self.store.curve(key)[1:] for key in keys)

    @cached_property
    def curves(self) -> Mapping[str, list[tuple[int, list[float]]]]:
        """Arm to its learning curve: tokens trained on, and the training losses of its seeds there."""
        found: dict[str, dict[int, list[float]]] = {}
        for run in self.plan.runs:
            if run.arm.run.pretrained or self.states[run.arm.label, run.seed] == "diverged":
                continue  # with one that ends early the mean of the others would jump
            key = run.pretrained.key
            for tokens, loss in _finished_curve(self.store, key) if self.store.has(key) else _curve(self.store, key):
                found.setdefault(run.arm.label, {}).setdefault(tokens, []).append(loss)
        return {arm: sorted(points.items()) for arm, points in found.items()}

    @cached_property
    def seconds(self) -> Mapping[str, Mapping[str, float]]:
        """Arm to what one of its finished runs took: seconds of one worker by part, the median over seeds."""
        took: dict[str, dict[str, list[float]]] = {}
        for run in self.plan.runs:
            if self.states[run.arm.label, run.seed] != "done":
                continue
            parts = dict.fromkeys((PARTS[stage.kind] for stage in run.stages if stage.kind in PARTS), 0.0)
            for stage in run.stages:
                if stage.kind in PARTS:
                    parts[PARTS[stage.kind]] += self.stages.took(stage.key)
            for part, seconds in parts.items():
                took.setdefault(run.arm.label, {}).setdefault(part, []).append(seconds)
        return {arm: {part: statistics.median(all_) for part, all_ in parts.items()} for arm, parts in took.items()}


def _curve(store: Store, key: str) -> list[tuple[int, float]]:
    """Tokens and training loss of a pretraining; each second point, which a chart's width still shows as a line."""
    return [(point["train/tokens"], point["train/loss"]) for point in store.curve(key)[1::2]]


_finished_curve = lru_cache(maxsize=2000)(_curve)  # a page asks again and again; what is finished does not change
