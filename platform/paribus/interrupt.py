"""Signals that ask a process to end: they set a flag, and whoever works looks at it when it is safe to stop."""

import os
import signal
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""What asks a worker to put its run back: the terminal, whoever started it, and Slurm before a time limit."""


class Interrupt:
    """True once one of `signals` was heard. A second Ctrl-C ends the process on the spot, as kill -9 would."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.heard: signal.Signals | None = None
        for number in signals:
            signal.signal(number, self._hear)

    def __call__(self) -> bool:
        return self.heard is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that this signal ended."""
        return 128 + self.heard if self.heard else 0

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self.heard == signal.SIGINT:
            os._exit(self.exit_code)
        self.heard = signal.Signals(number)
