"""What the pretrain stage asks of an objective's module."""

import torch
from torch import Tensor, nn

from paribus.objectives.batch import Step
from paribus.train.module import Trained


class Pretrained(Trained):
    """A module that the pretrain stage trains. `guess` is the loss of a model that knows nothing."""

    guess: float

    def cut(self, batch: Step, rows: int) -> Step:
        return batch.cut(rows)

    def transfer_batch_to_device(self, batch: Step, device: torch.device, dataloader_idx: int) -> Step:
        there: Step = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if self.passes.how != "off":
            for micro in there.micros:
                micro.vary()
        return there

    def most_rows(self, batch: Step) -> int:
        return max(len(micro.tokens_BT) for micro in batch.micros)

    def files(self) -> dict[str, dict[str, Tensor]]:
        """What the stage keeps, by file name: `encoder`, the encoder that is fine-tuned, and what goes with it."""
        raise NotImplementedError


def named(name: str, module: nn.Module) -> dict[str, Tensor]:
    """The weights of a part of a file, under its name."""
    return {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}


def part(name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a part, out of its file."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in weights.items() if key.startswith(f"{name}.")}
