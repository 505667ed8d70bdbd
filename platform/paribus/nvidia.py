"""What the driver's own tool says of the GPUs, so that nobody loads torch to ask."""

import subprocess

ANSWER_SECONDS = 30  # a driver that wakes up takes a while; one that hangs is as good as none


def ask(*fields: str) -> list[list[str]]:
    """The values of nvidia-smi's `fields` for each GPU, sizes in MiB without their unit; [] where it does not say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split(", ") for line in told.splitlines() if line.count(", ") == len(fields) - 1]
