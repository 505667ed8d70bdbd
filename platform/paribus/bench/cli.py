"""The command line as whole processes: CPU and wall seconds of the child."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence


def children_cpu() -> float:
    """CPU seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(argv: Sequence[str], **environment: str) -> tuple[float, float]:
    """CPU and wall seconds of one run of `python ARGV`, with these variables more in its environment."""
    before, start = children_cpu(), time.perf_counter()
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    return children_cpu() - before, time.perf_counter() - start


def _report(argv: Sequence[str], repeats: int) -> None:
    command = ["-m", "paribus", *argv]
    timed(command)  # the first run compiles
    cpu, wall = zip(*(timed(command) for _ in range(repeats)), strict=True)
    medians = f"{statistics.median(cpu):6.2f} s CPU  {statistics.median(wall):6.2f} s wall"
    print(f"{medians}  (median of {repeats}, CPU {min(cpu):.2f} to {max(cpu):.2f})  paribus {' '.join(argv)}")


def measure(repeats: int) -> None:
    """--help, list and plan."""
    for argv in (["--help"], ["list"], ["list", "factors"], ["plan", "masking", "--scale", "tiny"]):
        _report(argv, repeats)


def measure_plan(runs: int) -> None:
    """An experiment of `runs` runs: two arms of runs/2 seeds."""
    _report(["plan", "masking", "--scale", "tiny", "--seeds", str(runs // 2)], 3)
