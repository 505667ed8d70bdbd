"""What a plan will take: seconds and bytes, from what finished stages took, else from FLOPs."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import SpecError
from paribus.files import read_cache, write_cache
from paribus.plan.plan import Plan
from paribus.plan.stages import Pretraining, Stage
from paribus.project import Project
from paribus.spec.base import canonical, digest
from paribus.spec.objective import Rtd
from paribus.spec.run import Run

# Where nothing has been measured yet: a CPU core's modest rate, and a few seconds for any other stage.
GUESSED_FLOPS_A_SECOND = 2e10
GUESSED_SECONDS = 5.0


@dataclass(frozen=True)
class Cost:
    """What a pretraining costs, as `paribus.nn.count` counts it on the meta device.

    parameters: all that is trained (encoder and head, a generator's too), tied ones once.  embedding: of these, token,
    segment and position tables.
    train_flops_a_token: forward and backward (three times the forward), a multiply and an add counted as two, the head
    at the predicted places only.
    """

    parameters: int
    embedding: int
    train_flops_a_token: float


def cost_question(run: Run) -> dict[str, Any]:
    """What `paribus.nn.count` is asked about a run."""
    return {
        "encoder": run.encoder.model_dump(mode="json"),
        "vocabulary": run.tokenizer.vocabulary_size,
        "length": run.packing.length,
        "rate": run.objective.rate,
        "rtd": run.objective.model_dump(mode="json") if isinstance(run.objective, Rtd) else None,
    }


def cost_key(run: Run) -> str:
    """The name an answer is remembered by."""
    rtd = canonical(run.objective) if isinstance(run.objective, Rtd) else ""
    sizes = run.tokenizer.vocabulary_size, run.packing.length, run.objective.rate
    return digest("|".join(map(str, (canonical(run.encoder), *sizes, rtd))))


def costs(plan: Plan, project: Project, cache: Path) -> dict[str, Cost]:
    """The cost of each arm by `cost_key`, remembered in `cache`; {} where counting fails, which is said.

    SpecError where a model cannot be built: no run of it could.
    """
    known = read_cache(cache)
    asked = {cost_key(arm.run): cost_question(arm.run) for arm in plan.arms}
    new = [key for key in asked if key not in known]
    if new:
        counted = _count([asked[key] for key in new], project)
        if counted is None:
            return {}
        known |= dict(zip(new, counted, strict=True))
        write_cache(cache, known)
    return {key: Cost(**known[key]) for key in asked}


def _count(questions: list[dict[str, Any]], project: Project) -> list[dict[str, Any]] | None:
    """What `paribus.nn.count` answers, in a process of its own because it needs torch; None where it fails."""
    child = subprocess.run(
        [sys.executable, "-m", "paribus.nn.count"],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        cwd=project.root,
    )
    reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    if child.returncode == 2:
        raise SpecError(reason)
    if child.returncode:
        print(f"parameters could not be counted: {reason}", file=sys.stderr)
        return None
    answers: list[dict[str, Any]] = json.loads(child.stdout)
    return answers


@dataclass(frozen=True)
class Estimate:
    """`measured` is the share of the missing seconds that rests on finished stages like the missing ones."""

    seconds: float
    bytes: int
    measured: float


def estimate(
    plan: Plan, missing: Iterable[Stage], costs: Mapping[str, Cost], finished: Iterable[Mapping[str, Any]]
) -> Estimate:
    """The work left in `missing`. `costs` by `cost_key`, `finished` what stage.json files say."""
    arms = {run.arm.label: costs.get(cost_key(run.arm.run)) for run in plan.known}
    cost_of = {run.pretrained.key: arms[run.arm.label] for run in plan.known}
    rates: dict[str, float] = {}
    spans: dict[str, list[float]] = {}
    for record in finished:
        if record["kind"] == "pretrain" and record.get("tokens_per_second"):
            rates[_encoder_of(record["spec"])] = record["tokens_per_second"]
        else:
            spans.setdefault(record["kind"], []).append(record["finished"] - record["started"])
    seconds, known, size = 0.0, 0.0, 0
    for stage in missing:
        if isinstance(stage.spec, Pretraining):
            rate = rates.get(_encoder_of(stage.spec.model_dump(mode="json")))
            cost = cost_of[stage.key]
            a_token = cost.train_flops_a_token if cost else 0.0
            took = stage.spec.budget.train_tokens * (1 / rate if rate else a_token / GUESSED_FLOPS_A_SECOND)
            known += took if rate else 0.0
            size += 4 * cost.parameters if cost else 0
        else:
            like = spans.get(stage.kind)
            took = sum(like) / len(like) if like else GUESSED_SECONDS
            known += took if like else 0.0
            size += 2**16
        seconds += took
    return Estimate(seconds, size, known / seconds if seconds else 1.0)


def _encoder_of(spec: Mapping[str, Any]) -> str:
    """What decides the speed of a pretraining, as text."""
    return str(spec["encoder"]) + str(spec["precision"]) + str(spec["objective"].get("generator"))
