"""The steps of README.md's table, all in turn: python benchmarks/steps.py FOLDER [NAME ...]

Writes FOLDER/NAME.json as `paribus bench train --json` does. What is compiled is first compiled by several processes at
once, so that those which are timed find it in torch's cache, and their first steps say what a second run's take. Each
contender has a process of its own, forked from this one, which has imported what they need and touches no GPU: so
`start_seconds` are without imports.
"""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking CUDA itself for a GPU leaves none to forked processes

import torch._inductor.compile_fx  # noqa: F401 as the next, for the processes that are forked
import transformers.models.bert.modeling_bert
import transformers.models.deberta_v2.modeling_deberta_v2  # noqa: F401

from paribus.bench.train import LIMIT, contend, measure, question, sized
from paribus.errors import in_one_line
from paribus.spec.run import Run, Runtime

STEPS = 20
AT_ONCE = 4  # processes that compile: the largest takes a quarter of a card of 80 GB
PEERS = ["transformers", "transformers-compiled"]
VOCABULARY = {"tokenizer.vocabulary_size": 30522}  # BERT's
WITHOUT_DROPOUT = {**VOCABULARY, "encoder.dropout": 0.0, "encoder.attention.dropout": 0.0}
V3 = {  # the attention of DeBERTaV3, as in experiments/bases/deberta-v3.yaml
    **VOCABULARY,
    "encoder.attention.buckets": 256,
    "encoder.attention.share_projections": True,
    "encoder.attention.table_norm": True,
    "encoder.attention.key_bias": True,
    "encoder.head": {"kind": "bert"},
}
# Base, scale, what is set, batch, and our ways of computing it.
ROWS: dict[str, tuple[str, str, dict[str, Any], str, list[str]]] = {
    "bert-small": ("bert", "small", VOCABULARY, "256x128", ["off", "graphs"]),
    "bert-base": ("bert", "base", VOCABULARY, "64x512", ["off", "graphs"]),
    "bert-base-no-dropout": ("bert", "base", WITHOUT_DROPOUT, "64x512", ["graphs"]),
    "deberta-base-512": ("deberta", "base", V3, "64x512", ["graphs"]),
    "deberta-base-128": ("deberta", "base", V3, "256x128", ["graphs"]),
}


FORK = multiprocessing.get_context("fork")


class Contender:
    """A process that measures a contender, as in paribus.bench.train."""

    def __init__(self, asked: dict[str, Any], name: str) -> None:
        self._ours, theirs = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=_contend, args=(theirs, {**asked, "contender": name}))
        self._process.start()
        theirs.close()

    def answer(self) -> dict[str, Any] | str:
        """What it measured, or in one line why it did not."""
        try:
            found: Any = self._ours.recv() if self._ours.poll(LIMIT) else f"not done after {LIMIT:.0f} s"
        except EOFError:
            self._process.join()
            found = f"code {self._process.exitcode}"
        self._process.kill()
        self._process.join()
        return found


def _contend(to: Connection, asked: dict[str, Any]) -> None:
    try:
        to.send(contend(asked))
    except Exception as error:
        to.send((str(error).strip().splitlines() or [type(error).__name__])[-1])


def ask(asked: dict[str, Any], name: str) -> dict[str, Any] | str:
    """As paribus.bench.train.in_process, of a forked process."""
    return Contender(asked, name).answer()


def run_of(name: str) -> Run:
    """The run of a row."""
    base, scale, changes, batch, _ = ROWS[name]
    return sized(base, scale, changes, batch)


def contenders(name: str) -> list[str]:
    """Ours and the peers of a row."""
    return [f"compile {how}" for how in ROWS[name][-1]] + PEERS


def fill_cache(names: list[str]) -> None:
    """Compile what will be timed compiled, several at once."""
    compiled = [
        (question(run_of(name), 1, Runtime()), contender)
        for name in names
        for contender in contenders(name)
        if contender not in ("compile off", "transformers")
    ]
    for first in range(0, len(compiled), AT_ONCE):
        for begun in [Contender(*one) for one in compiled[first : first + AT_ONCE]]:
            if isinstance(why := begun.answer(), str):
                print(why, file=sys.stderr)


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fill_cache(names)
    card = ask(question(run_of(names[0]), 1, Runtime()), "ceiling")
    for name in names:
        title, file = "@".join(ROWS[name][:2]), folder / f"{name}.json"
        measure(run_of(name), contenders(name), STEPS, 1, Runtime(), title, file, card, ask)


if __name__ == "__main__":
    if len(sys.argv) < 2 or (unknown := set(sys.argv[2:]) - set(ROWS)):
        sys.exit(__doc__ if len(sys.argv) < 2 else f"no row {min(unknown)}; there are {', '.join(ROWS)}")
    with in_one_line():
        main(Path(sys.argv[1]), sys.argv[2:] or list(ROWS))
