"""Signals set a flag; a second Ctrl-C ends the process on the spot."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paribus

SCRIPT = """
import signal, time
from paribus.interrupt import Interrupt
stop = Interrupt(signal.SIGINT, signal.SIGTERM)
print("ready", flush=True)
while not stop():
    time.sleep(0.01)
print(stop.heard.name, stop.exit_code, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("signals", "said", "code"),
    [
        ([signal.SIGTERM], "SIGTERM 143", None),
        ([signal.SIGINT], "SIGINT 130", None),
        ([signal.SIGINT, signal.SIGTERM], "SIGINT 130", None),  # a terminal's, then that of `paribus work`
        ([signal.SIGTERM, signal.SIGTERM], "SIGTERM 143", None),
        ([signal.SIGINT, signal.SIGINT], "SIGINT 130", 130),
    ],
)
def test_the_first_signal_is_heard_and_only_a_second_ctrl_c_ends_the_process(
    signals: list[signal.Signals], said: str, code: int | None
) -> None:
    command = [sys.executable, "-c", SCRIPT]
    environment = {"PYTHONPATH": str(Path(paribus.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(signals[0])
        assert process.stdout.readline() == said + "\n"
        for number in signals[1:]:
            process.send_signal(number)
        if code is None:
            time.sleep(0.2)
            assert process.poll() is None
            process.kill()
        else:
            assert process.wait(10) == code
