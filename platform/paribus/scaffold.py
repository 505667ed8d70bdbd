"""`paribus init`: a working project of a user's own, small enough to read in a minute."""

from pathlib import Path

from paribus.project import new_folder

FILES = {
    "paribus.toml": """\
# A paribus project. Paths are relative to this file.
store = "results"          # finished stages, the queue, tables, mlflow.db
data = "data"              # what corpora (kind jsonl, parquet, text) and tasks (kind folder) are relative to
variants = "variants.py"   # your own variants; remove the line if you have none
""",
    "README.md": """\
# My ablations

    paribus plan my-first --scale debug     # what would run
    paribus run my-first --scale debug      # seconds; the numbers mean nothing
    paribus run my-first --scale tiny       # minutes on a CPU
    paribus table my-first --format md

- `experiments/` questions; `ablations/` what can vary; `tasks/` and `dashboards/papers/` likewise. The shipped ones
  are there too.
- `variants.py` model parts of your own.
- `data/` your corpora: `corpus: {kind: jsonl, paths: [mine.jsonl.gz]}` in an experiment's `set:`.
""",
    "experiments/my-first.yaml": """\
question: Does word order need to be learned?
expect: sided relative biases first, sinusoidal behind, unordered far behind   # write this before you run
base: bert-relative
factors: [word-order]
seeds: 3
tasks: [acceptability]
sesoi: {nats: 0.02, points: 1}   # the smallest effects that would matter to you
""",
    "ablations/word-order.yaml": """\
source: "Vaswani et al. 2017, arXiv:1706.03762, section 3.5; Raffel et al. 2020, arXiv:1910.10683, section 2.1"
base: relative
levels:
  relative: {encoder.position: {kind: relative-bias, max_distance: 32, start: sided}}
  sinusoidal: {encoder.position: {kind: sinusoidal}}
  unordered: {encoder.position: {kind: unordered}}
""",
    "variants.py": '''\
"""Variants of my own: a Spec for each, and the module that `modules()` maps it to.

A Spec subclass of Position, Attention, FeedForward, Norm or Head joins the kinds its slot accepts. The text of this
file is part of the key of every run that uses one, so edited code is never mistaken for what ran before.
"""

from typing import Literal

from paribus.spec.model import Position


class Sinusoidal(Position):
    """Fixed sines and cosines added to the embedding. Vaswani et al. 2017, arXiv:1706.03762, section 3.5."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = 10_000.0


def modules():
    """Called when a model is built, so that planning never loads torch."""
    import torch

    from paribus.nn.position import Position as PositionModule

    class SinusoidalPosition(PositionModule):
        def __init__(self, spec, encoder):
            super().__init__()
            self.base = spec.base

        def embed(self, x_BTD):
            _, length, width = x_BTD.shape
            place = torch.arange(length, device=x_BTD.device)[:, None]
            rate = self.base ** (-torch.arange(0, width, 2, device=x_BTD.device) / width)
            angle = place * rate
            waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]
            return x_BTD + 0.02 * waves

    return {Sinusoidal: SinusoidalPosition}
''',
    "data/.gitkeep": "",
    ".gitignore": "results/\n",
}


def make(folder: Path) -> list[Path]:
    """Write the files of a new project into `folder`, which must be new or empty; returns them."""
    new_folder(folder)
    written = []
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
