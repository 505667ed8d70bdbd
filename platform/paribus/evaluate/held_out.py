"""Held-out masked-LM loss: the same masked places for every arm, seed and step of training.

A share of the tokens, all by [MASK], drawn from a constant stream by row number; fp32; summed over all places, divided
once, so batch size does not enter.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from paribus.data.masking import mask
from paribus.data.packing import load
from paribus.nn.build import build_encoder, build_head
from paribus.nn.encoder import Encoder
from paribus.objectives.loader import make_micro
from paribus.spec import model as spec
from paribus.spec.data import Replacement
from paribus.spec.run import HeldOut, Runtime
from paribus.store.store import Work
from paribus.train.fit import device, use_threads

ALL_MASKED = Replacement(mask=1.0, random=0.0)
EVALUATION_SEED = -1  # no run has it, so no training mask is an evaluation mask
BATCH_ROWS = 128


def load_encoder(encoder: spec.Encoder, vocabulary: int, pretrained: Path) -> Encoder:
    """The pretrained encoder of a finished stage."""
    module = build_encoder(encoder, vocabulary)
    module.load_state_dict(load_file(pretrained / "encoder.safetensors"))
    return module


@torch.no_grad()
def held_out(
    asked: HeldOut, encoder: spec.Encoder, vocabulary: int, pretrained: Path, pack: Path, work: Work, runtime: Runtime
) -> None:
    """Rows loss (nats a masked token), perplexity and accuracy on the validation and test documents."""
    use_threads(runtime)
    where = device(runtime)
    module = load_encoder(encoder, vocabulary, pretrained)
    head = build_head(encoder, module)
    weights = load_file(pretrained / "heads.safetensors")
    head.load_state_dict({n.removeprefix("head."): w for n, w in weights.items() if n.startswith("head.")})
    module.to(where).eval()
    head.to(where).eval()
    for split in ("validation", "test"):
        rows = load(pack, split)
        loss, right, places = 0.0, 0, 0
        for start in range(0, len(rows), BATCH_ROWS):
            numbers = np.arange(start, min(start + BATCH_ROWS, len(rows)))
            tokens = rows.tokens[numbers]
            masked = mask(tokens, numbers, np.zeros_like(numbers), EVALUATION_SEED, asked.rate, ALL_MASKED, vocabulary)
            micro = make_micro(rows, numbers, tokens, masked.inputs, masked.chosen).to(where)
            logits_MV = head(module.states(micro.tokens_BT, micro.segments_BT, micro.padding_BT), micro.places_M)
            loss += float(F.cross_entropy(logits_MV, micro.targets_M, reduction="sum").double())
            right += int((logits_MV.argmax(-1) == micro.targets_M).sum())
            places += len(micro.targets_M)
        work.row("loss", loss / places, split=split, n=places, task="mlm")
        work.row("perplexity", math.exp(min(loss / places, 700.0)), split=split, n=places, task="mlm")
        work.row("accuracy", right / places, split=split, n=places, task="mlm")
