"""The one place that builds a Trainer."""

import logging
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from paribus.errors import ParibusError
from paribus.spec.run import Runtime
from paribus.train.lightning import LightningEnvironment, pl

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")


def device(runtime: Runtime) -> torch.device:
    """The device a runtime asks for; of several the first."""
    name = runtime.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device("cuda:0" if name == "cuda" else name)
    except RuntimeError:
        raise ParibusError(f"--device {runtime.device}: expected auto, cpu, cuda or cuda:N") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ParibusError(f"--device {runtime.device}: no GPU is visible here")
    if found.type == "cuda" and found.index + runtime.devices > torch.cuda.device_count():
        there = f"{torch.cuda.device_count()} GPUs are visible here, numbered from 0"
        raise ParibusError(f"--device {runtime.device} --devices {runtime.devices}: {there}")
    return found


def use_threads(runtime: Runtime) -> None:
    """Fix the number of CPU threads: it decides in which order sums are taken, so it must not follow the load."""
    torch.set_num_threads(runtime.threads)


def attention(runtime: Runtime) -> AbstractContextManager[None]:
    """The kernel of attention that a runtime asks for goes first; the others stay, for what it cannot compute."""
    if runtime.sdpa == "auto":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    first = kernels.pop(runtime.sdpa)
    order: AbstractContextManager[None] = sdpa_kernel([first, *kernels.values()], set_priority=True)
    return order


def fit(
    module: pl.LightningModule,
    batches: Iterable[Any],
    steps: int,
    precision: Literal["fp32", "bf16"],
    runtime: Runtime,
    callbacks: list[pl.Callback] | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Train `module` for `steps` optimizer steps in all; `checkpoint` is where it resumes from."""
    use_threads(runtime)
    where = device(runtime)
    trainer = pl.Trainer(
        accelerator="gpu" if where.type == "cuda" else "cpu",
        devices=[where.index] if where.type == "cuda" else 1,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_steps=steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[LightningEnvironment()],  # whatever SLURM says of its tasks: a training is this process
    )
    # Lightning's own handlers end a training where nothing was saved, and put SLURM jobs back into the queue.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    with attention(runtime):
        trainer.fit(module, train_dataloaders=batches, ckpt_path=checkpoint, weights_only=True)
