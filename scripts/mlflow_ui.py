"""Open the MLflow UI on a results folder: loopback only, one worker, no job runner.

Started plainly, ``mlflow server`` takes a worker a core and a job runner beside them; like this two
processes and about 0.4 GB.

    python scripts/mlflow_ui.py [--dir results] [--port 5000]

It answers this machine only, since MLflow asks nobody who they are. From another machine a tunnel
is safest: ``ssh -L 5000:127.0.0.1:5000 HOST``, then http://127.0.0.1:5000 there. To let a network
in, or a proxy that uses another name, give the address to listen on and the names by which the
server may be called; MLflow answers any other name with 403:

    python scripts/mlflow_ui.py --host 0.0.0.0 --allowed-hosts 'HOST:5000,127.0.0.1:5000'
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from runners.harness.store.local import to_uri


def main() -> int:
    """Run the server until Ctrl-C; returns its exit status."""
    parser = argparse.ArgumentParser(description="The MLflow UI on a results folder.")
    default = Path(__file__).resolve().parents[1] / "results"
    parser.add_argument("--dir", type=Path, default=default, help="tracking.dir of the runs")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--allowed-hosts", help="names by which it may be called, with commas")
    arguments = parser.parse_args()
    database = arguments.dir.expanduser().absolute() / "mlflow.db"
    if not database.is_file():
        print(
            f"{database}: no such store; measure something first (python -m runners.bench) "
            "or name its folder with --dir",
            file=sys.stderr,
        )
        return 2
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    print(f"http://{arguments.host}:{arguments.port} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", arguments.host, "--workers", "1"]
    command += ["--port", str(arguments.port), "--backend-store-uri", to_uri(database)]
    if arguments.allowed_hosts:
        command += ["--allowed-hosts", arguments.allowed_hosts]
    server = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    try:
        return server.wait()
    except KeyboardInterrupt:
        return server.wait()


if __name__ == "__main__":
    sys.exit(main())
