"""Compute a stage twice: undisturbed, and in processes that are killed (-9) at random points, each going on from there.

A program of its own, told on standard input what to compute; everything is imported once, and each process forked.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from paribus.evaluate.finetune import finetune
from paribus.objectives.pretrain import pretrain
from paribus.plan.stages import Pretraining, TaskTuning, make
from paribus.spec.load import build
from paribus.spec.model import Encoder
from paribus.spec.run import Runtime
from paribus.store.store import Store

ASKED = json.load(sys.stdin)
RUNTIME = Runtime(device="cpu", checkpoint_seconds=0.03, **ASKED["runtime"])
KIND = ASKED["kind"]
STAGE = make(KIND, build(Pretraining if KIND == "pretrain" else TaskTuning, ASKED["spec"], KIND), {}, 0)
PLACES = {name: Path(path) for name, path in ASKED["places"].items()}


def compute(store: Store) -> None:
    """Go on with the stage to its end."""
    work = store.claim(STAGE)
    assert work
    with work:
        if isinstance(STAGE.spec, Pretraining):
            said = pretrain(STAGE.spec, 0, PLACES["pack"], ASKED["vocabulary"], work, RUNTIME)
        else:
            assert isinstance(STAGE.spec, TaskTuning)
            encoder = build(Encoder, ASKED["encoder"], "encoder")
            said = finetune(
                STAGE.spec, 0, encoder, PLACES["start"], PLACES["task"], PLACES["features"], work, RUNTIME
            )
        work.commit("provenance", **said)  # type: ignore[arg-type]


def fork(store: Store) -> int:
    """A process that computes the stage."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            compute(store)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def saved(store: Store) -> int:
    """The step of the newest checkpoint."""
    names = (store.root / "doing" / STAGE.key / "scratch" / "checkpoints").glob("*.ckpt")
    return max((int(path.name.partition("-")[0]) for path in names), default=0)


def main() -> int:
    """Print how many processes were killed, and where the last one went on from."""
    undisturbed, disturbed = (Store(Path(ASKED["folder"]) / name) for name in ("undisturbed", "killed"))
    for store in (undisturbed, disturbed):
        store.prepare()
    assert os.waitstatus_to_exitcode(os.waitpid(fork(undisturbed), 0)[1]) == 0
    draws = random.Random(ASKED["seed"])
    killed = 0
    for step in sorted(draws.sample(range(1, ASKED["steps"] - 2), ASKED["kills"])):
        child, ended = fork(disturbed), (0, 0)
        while saved(disturbed) < step and ended == (0, 0):
            time.sleep(0.001)
            ended = os.waitpid(child, os.WNOHANG)
        if ended == (0, 0):
            time.sleep(draws.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        if (code := os.waitstatus_to_exitcode(ended[1])) == 0:
            break  # done before it was killed
        assert code == -signal.SIGKILL, code
        killed += 1
    if not disturbed.has(STAGE.key):
        assert os.waitstatus_to_exitcode(os.waitpid(fork(disturbed), 0)[1]) == 0
    print(json.dumps({"key": STAGE.key, "killed": killed, "resumed_at": disturbed.record(STAGE.key)["resumed_at"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
