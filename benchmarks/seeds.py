"""Seeds of an arm trained in one process, beside one alone: python benchmarks/seeds.py FILE [--seeds 2 4 8]

Masked language modelling, each seed with weights, rows, masks and dropout of its own. Whole steps are timed: both
passes, the clipping of each seed, AdamW. "streams": a model a seed, each on a CUDA stream of its own. "batched": the
parameters of all seeds stacked along a first dimension, S, and torch.func.vmap over it; autocast does not reach into
vmap, so where the run asks for bf16 all but the loss is computed in it, which is less work than each seed does apart.
Several processes on one card are measured by `paribus bench together`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from paribus.bench.devices import random_rows
from paribus.bench.train import WARM_UP, head, long, name_of, refuse_unwritable, sized
from paribus.errors import in_one_line
from paribus.objectives.batch import Micro
from paribus.objectives.mlm import Mlm
from paribus.objectives.pretrain import prepare
from paribus.spec.run import Run, Runtime
from paribus.train.fit import device
from paribus.train.passes import Passes
from paribus.train.ranks import ALONE

Inputs = tuple[Tensor, ...]
# Kernels of attention that can be compiled within vmap, which cuDNN's cannot: all ways are given these.
WITHIN_VMAP = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Seed(nn.Module):
    """The mean loss of one seed's micro-batch."""

    def __init__(self, module: Mlm) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens_BT: Tensor, places_M: Tensor, targets_M: Tensor, predicted: Tensor) -> Tensor:
        return self.module.losses(Micro(tokens_BT, None, None, places_M, targets_M))[0] / predicted


class Stacked(nn.Module):
    """The losses of S seeds, (S,), of inputs and by parameters that have the seeds as their first dimension."""

    def __init__(self, seeds: Sequence[Seed], dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        parameters, self._fixed = stack_module_state(list(seeds))
        self._names = list(parameters)
        self._stacked = nn.ParameterList(parameters.values())
        self._first = [seeds[0]]  # in a list: its own parameters are none of this module's

    def forward(self, *inputs: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor], fixed: dict[str, Tensor], its: Inputs) -> Tensor:
            found: Tensor = functional_call(self._first[0], (parameters, fixed), its)
            return found

        computed = [parameter.to(self._dtype) for parameter in self._stacked]
        parameters = dict(zip(self._names, computed, strict=True))
        losses_S: Tensor = vmap(loss, randomness="different")(parameters, self._fixed, inputs)
        return losses_S


class Trained:
    """What trains a module on one batch again and again."""

    def __init__(self, module: nn.Module, inputs: Inputs, run: Run, how: Any) -> None:
        self._module, self._inputs = module, inputs
        self._stacked = isinstance(module, Stacked)
        self.passes = Passes(module)
        self._parameters = self.passes.parameters
        self.passes.how = how
        spec: Any = run.optimizer
        self._clip = spec.clip or float("inf")
        self._precision = {"dtype": torch.bfloat16, "enabled": run.precision == "bf16", "cache_enabled": False}
        matrix = 2 + self._stacked
        groups = [
            {"params": [p for p in self._parameters if p.ndim >= matrix], "weight_decay": spec.weight_decay},
            {"params": [p for p in self._parameters if p.ndim < matrix], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, spec.lr, (spec.beta1, spec.beta2), spec.eps, fused=True)

    def step(self) -> Tensor:
        """An optimizer step; the losses before it, of one seed or (S,)."""
        self.passes.zero_gradients(0)
        with torch.autocast(self._parameters[0].device.type, **self._precision):
            parts = self.passes(self._compute, *self._inputs)
        self._clip_gradients()
        self._optimizer.step()
        return parts["losses"]

    def _compute(self, *inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        losses = self._module(*inputs)
        return losses.sum(), {"losses": losses}

    def _clip_gradients(self) -> None:
        if not self._stacked:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms_SP = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients], dim=1)
        share_S = (self._clip / (torch.linalg.vector_norm(norms_SP, dim=1) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient *= share_S.view(-1, *[1] * (gradient.ndim - 1))


def seed_of(run: Run, seed: int, where: torch.device) -> tuple[Seed, Inputs]:
    """A seed's first values and its first step, on the device."""
    size = run.tokenizer.vocabulary_size
    rows, runtime = random_rows(run.packing.length, size), Runtime(device=str(where), compile="on")
    steps, module = prepare(long(run, 1), seed, rows, size, runtime, ALONE)
    assert isinstance(module, Mlm)
    step = steps.step(0).to(where)
    (micro,) = step.micros
    micro = module.to(where).draw(micro)
    return Seed(module), (micro.tokens_BT, micro.places_M, micro.targets_M, torch.as_tensor(step.predicted))


def apart(run: Run, count: int, where: torch.device, how: str) -> list[Trained]:
    """So many seeds, each by itself."""
    return [Trained(*seed_of(run, seed, where), run, how) for seed in range(count)]


def batched(run: Run, count: int, where: torch.device, how: str) -> Trained:
    """So many seeds as one."""
    seeds, inputs = zip(*(seed_of(run, seed, where) for seed in range(count)), strict=True)
    dtype = torch.bfloat16 if run.precision == "bf16" else torch.float32
    return Trained(Stacked(seeds, dtype), tuple(torch.stack(of) for of in zip(*inputs, strict=True)), run, how)


@contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On a stream, on which graphs are captured too: those of one stream share a workspace of cuBLAS, so they must not
    run at once."""
    if stream is None:
        yield
        return
    before = torch.cuda.graph.default_capture_stream
    torch.cuda.graph.default_capture_stream = stream
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.graph.default_capture_stream = before


def time_steps(seeds: Sequence[Trained], steps: int, where: torch.device) -> float:
    """Seconds of a step of all seeds, median."""
    cuda = where.type == "cuda"
    streams = [torch.cuda.Stream(where) if cuda and len(seeds) > 1 else None for _ in seeds]
    seconds = []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        for seed, stream in zip(seeds, streams, strict=True):
            with _on(stream):
                seed.step()
        if cuda:
            torch.cuda.synchronize(where)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM_UP:])


def main(file: Path, run: Run, counts: Sequence[int], steps: int, runtime: Runtime, title: str) -> None:
    refuse_unwritable("FILE", file)
    where, batch = device(runtime), run.budget.batch_tokens
    rows: list[dict[str, Any]] = []
    found = {**head(title), "device": name_of(where), "runtime": runtime.model_dump(mode="json"), "steps": steps}
    found |= {"attention": [kernel.name for kernel in WITHIN_VMAP], "run": run.model_dump(mode="json"), "rows": rows}

    def add(way: str, count: int, seeds: Sequence[Trained]) -> None:
        rate, how = count * batch / time_steps(seeds, steps, where), seeds[0].passes.how
        alone = rows[0]["tokens_per_second"] if rows else rate
        rows.append({"way": way, "seeds": count, "how": how, "tokens_per_second": rate, "ratio": rate / alone})
        print(f"{way:8} {count:2} {rate:14,.0f} tokens/s {rate / alone:6.2f}  {how}", flush=True)
        file.write_text(json.dumps(found, indent=1) + "\n")

    with sdpa_kernel(WITHIN_VMAP):
        alone = apart(run, max(counts), where, runtime.compile)
        add("alone", 1, alone[:1])
        for count in counts:
            add("streams", count, alone[:count])
        for seed in alone:
            seed.passes.forget()
        for count in counts:
            seeds = batched(run, count, where, runtime.compile)
            add("batched", count, [seeds])
            seeds.passes.forget()


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("file", type=Path)
    asked.add_argument("--scale", default="small")
    asked.add_argument("--batch", default="256x128")
    asked.add_argument("--seeds", type=int, nargs="+", default=[2, 4, 8])
    asked.add_argument("--compile", default="graphs", choices=["off", "on", "graphs"])
    given = asked.parse_args()
    with in_one_line():
        main(
            given.file,
            sized("bert", given.scale, {"tokenizer.vocabulary_size": 30522}, given.batch),
            given.seeds,
            30,
            Runtime(compile=given.compile),
            f"bert@{given.scale}, seeds together",
        )
