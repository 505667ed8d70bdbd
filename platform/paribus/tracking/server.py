"""The command that shows the mirror in a browser. Starting and stopping it is the command line's part."""

import os
import socket
import sys

from paribus.errors import ParibusError
from paribus.store.store import Store
from paribus.tracking.mirror import ENVIRONMENT, artifact_folder


def refuse_port_in_use(host: str, port: int) -> None:
    """ParibusError where no server can listen at `host`:`port`: MLflow's own says so in its log and exits with 0."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        reason = (error.strerror or "").partition(" (")[0]
        raise ParibusError(f"--host {host} --port {port}: cannot be listened at ({reason}); name another") from None


def ui_command(store: Store, uri: str, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of an MLflow server at `host`:`port` over the database at `uri`, with our pages in it.

    One worker without job execution: MLflow's own default is 15 processes and 3 GB.
    ParibusError where `uri` is a server itself.
    """
    if uri.startswith("http"):
        raise ParibusError(f"{uri} is an MLflow server already; open it in a browser")
    argv = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    argv += ["--app-name", "paribus"]  # the entry point of paribus.pages.server
    argv += ["--backend-store-uri", uri, "--artifacts-destination", str(artifact_folder(store))]
    return argv, {**ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
