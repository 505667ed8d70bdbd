"""A project whose runs take seconds, the command line as a user's shell calls it there, and what came out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from paribus import cli
from paribus.data.corpus import texts
from paribus.spec.data import Sotu
from paribus.store.store import Store

FILES = {
    "experiments/masks.yaml": """\
question: Does anything get lost?
expect: nothing does
base: bert-relative
factors: [masking]
tasks: [few]
seeds: 1
set: {corpus: {kind: text, paths: [addresses]}}
""",
    "experiments/sizes.yaml": """\
question: Is each arm tuned alike?
expect: each is
base: bert-relative
factors: [batch-size]
tasks: [few]
seeds: 1
tune: {path: optimizer.lr, low: {times: 0.5}, high: {times: 4}, log: true, trials: 6, pruner: median}
set: {corpus: {kind: text, paths: [addresses]}}
""",
    "tasks/few.yaml": """\
kind: tagging
source: a test
data: {kind: built, builder: truecasing, train: 200, dev: 30}
labels: [O, CAP]
metrics: [f1]
""",
}
PARIBUS = [sys.executable, "-m", "paribus"]
MASKS = ["masks", "--scale", "debug"]
LONG = [*MASKS, "--set", "budget.train_tokens=524288"]
"""512 steps: long enough to be killed in the middle."""
OFTEN = ["--checkpoint-seconds", "0.5"]


class SmallProject:
    """Experiments on 60 beginnings of speeches, with a task of a few sentences."""

    def __init__(self, folder: Path, tracking: str = "") -> None:
        self.folder, self.store = folder, Store(folder / "results")
        environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
        environment["PARIBUS_STORE"] = str(self.store.root)
        self._where: dict[str, Any] = {"cwd": folder, "env": environment, "text": True}
        (folder / "data/addresses").mkdir(parents=True)
        for number, text in enumerate(sorted(texts(Sotu(), []), key=len)[:60]):
            (folder / f"data/addresses/{number:02}.txt").write_text(text[:3000])
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        (folder / "paribus.toml").write_text(f'tracking = "{tracking}"\n' if tracking else "")

    def start(self, *argv: str, output: int | IO[str] = subprocess.PIPE) -> "subprocess.Popen[str]":
        """`paribus ARGV`."""
        return subprocess.Popen([*PARIBUS, *argv], stdout=output, stderr=output, **self._where)

    def paribus(self, *argv: str, code: int = 0) -> str:
        """Run `paribus ARGV` to its end, which must be exit code `code`; stdout, or stderr where it has to fail."""
        done = subprocess.run([*PARIBUS, *argv], capture_output=True, **self._where)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    def entries(self) -> list[dict[str, Any]]:
        """The runs of the queue."""
        found: list[dict[str, Any]] = json.loads(self.paribus("status", "--json"))["runs"]
        return found

    def checkpoints(self) -> list[Path]:
        """Of the pretrainings under way."""
        return list((self.store.root / "doing").glob("pretrain-*/scratch/checkpoints/*.ckpt"))

    def results(self) -> dict[str, bytes]:
        """The rows of every finished stage, the weights of every encoder and what was predicted, by path."""
        stages = self.store.root / "stages"
        files = [*stages.glob("*/rows.jsonl"), *stages.glob("*/*.safetensors"), *stages.glob("*/predictions.parquet")]
        return {str(path.relative_to(stages)): path.read_bytes() for path in files}
