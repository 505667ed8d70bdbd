"""The steps of README.md's table, all in turn: python benchmarks/steps.py FOLDER [NAME ...]

Writes FOLDER/NAME.json as `paribus bench train --json` does. What is compiled is first compiled by several processes at
once, so that those which are timed find it in torch's cache, and their first steps say what a second run's take.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paribus.bench.train import in_process, measure, question, sized
from paribus.spec.run import Runtime

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


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    runtime = Runtime()
    runs = {name: sized(base, scale, set_, batch) for name, (base, scale, set_, batch, _) in ROWS.items()}
    contenders = {name: [f"compile {how}" for how in row[-1]] + PEERS for name, row in ROWS.items()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name in names:
            for contender in contenders[name]:
                if contender not in ("compile off", "transformers"):
                    pool.submit(in_process, question(runs[name], 1, runtime), contender)
    card = in_process(question(runs[names[0]], 1, runtime), "ceiling")
    for name in names:
        base, scale = ROWS[name][:2]
        measure(runs[name], contenders[name], STEPS, 1, runtime, f"{base}@{scale}", folder / f"{name}.json", card)


if __name__ == "__main__":
    if len(sys.argv) < 2 or (unknown := set(sys.argv[2:]) - set(ROWS)):
        sys.exit(__doc__ if len(sys.argv) < 2 else f"no row {min(unknown)}; there are {', '.join(ROWS)}")
    main(Path(sys.argv[1]), sys.argv[2:] or list(ROWS))
