"""A planned run: one arm at one seed, with its stages."""

from dataclasses import dataclass

from paribus.plan.arms import Arm
from paribus.plan.stages import Pruning, Stage, Stages
from paribus.spec.base import digest


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One arm at one seed. `key` is the run's own hash: the digest of its stages' keys."""

    arm: Arm
    seed: int
    key: str
    stages: list[Stage]
    trial: bool = False
    """Whether it tunes, so that no table reports it."""
    pruning: Pruning | None = None
    """What may end a trial early."""

    @property
    def pretrained(self) -> Stage:
        """Where its encoder is from: its pretraining, or its import."""
        return self.stage("import" if self.arm.run.pretrained else "pretrain")

    def stage(self, kind: str) -> Stage:
        """Its only stage of a kind."""
        (found,) = (stage for stage in self.stages if stage.kind == kind)
        return found


def at_seed(arm: Arm, maker: Stages, seed: int, trial: bool = False) -> PlannedRun:
    """The run of `arm` at `seed`; `maker` makes the arm's stages."""
    stages = maker.at(seed)
    key = f"run-{digest(','.join(stage.key for stage in stages))}"
    return PlannedRun(arm, seed, key, stages, trial, maker.pruning)
