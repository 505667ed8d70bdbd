"""What an experiment said before its first result: whoever changes it afterwards knows more than the reader thinks.

    runs/EXPERIMENT@SCALE/declared.json    what was declared, for each set of overrides
"""

import json
from typing import Any

from paribus.files import file_name, read_cache, write_atomically
from paribus.plan.plan import Plan
from paribus.store.lease import exclusive
from paribus.store.store import Store, writing

DECLARED = "declared.json"


def declare(store: Store, plan: Plan) -> None:
    """Keep what `plan` declares until an arm of it has a result: when it is queued, and when workers begin."""
    path, now, done = store.root / "runs" / file_name(plan.name) / DECLARED, _of(plan), store.keys()
    begun = any(not run.arm.baseline and run.stage("evaluate").key in done for run in plan.runs)
    with writing(store.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_name(".lock")):
            known = read_cache(path)
            if known.get(plan.label) != now and not (begun and plan.label in known):
                write_atomically(path, json.dumps({**known, plan.label: now}, indent=1))


def changed(store: Store, plan: Plan) -> list[str]:
    """What `plan` declares otherwise than before its first result, each with what it was; nothing where that is not
    known."""
    before = read_cache(store.root / "runs" / file_name(plan.name) / DECLARED).get(plan.label)
    if not isinstance(before, dict):
        return []
    now = _of(plan)
    names = [name for name in dict.fromkeys([*before, *now]) if name != "arms" and before.get(name) != now.get(name)]
    said = [f"{name} (before: {_text(before.get(name))})" for name in names]
    if gone := [label for label in before.get("arms", ()) if label not in now["arms"]]:
        said.append(f"arms (left out since: {', '.join(gone)})")
    return said


def _of(plan: Plan) -> dict[str, Any]:
    """Without what is as by default, so that a field that comes with a later version is no edit."""
    names = {"expect", "sesoi", "claims", "tasks", "baseline", "average", "aggregate"}
    told = plan.experiment.model_dump(mode="json", include=names, exclude_defaults=True)
    return {**told, "arms": [arm.label for arm in plan.arms]}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    return "none" if value is None else str(value).strip()
