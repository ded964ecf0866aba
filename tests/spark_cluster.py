"""A Spark standalone cluster of real processes on this machine: a master and workers, each a JVM of its own.

The workers' environment holds nothing of the tests': no path to our code, another working directory. What an
executor knows of Penstock it has from the package that is installed where its Python is.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pyspark

from penstock.lake.java import ensure_java
from tests.conftest import wait_until
from tests.ports import free_port

_HOST = "127.0.0.1"
_HOME = Path(pyspark.__file__).parent
_ATTEMPTS = 5


class SparkCluster(AbstractContextManager["SparkCluster"]):
    """One master; `add_worker` starts a worker with one core."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = 0
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> SparkCluster:
        self.directory.mkdir(parents=True)
        for _ in range(_ATTEMPTS):  # somebody else may take the port first; Spark then tries the next one
            self._port = free_port()
            self._master = self._start(
                "master", "org.apache.spark.deploy.master.Master", "--host", _HOST, "--port", str(self._port),
                "--webui-port", "0",
            )  # fmt: skip
            if self._comes_up("master", self._master, f"Starting Spark master at {self.url}"):
                return self
            self._kill(self._master)
        raise AssertionError(f"no Spark master: {self._log('master').read_text()}")

    def add_worker(self) -> psutil.Process:
        name = f"worker{len(self._workers)}"
        worker = self._start(
            name, "org.apache.spark.deploy.worker.Worker", "--host", _HOST, "--cores", "1", "--memory", "1g",
            "--work-dir", str(self.directory / name), "--webui-port", "0", self.url,
        )  # fmt: skip
        self._workers.append(worker)
        assert self._comes_up(name, worker, "Successfully registered with master"), self._log(
            name
        ).read_text()
        return psutil.Process(worker.pid)

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers, self._master):
            if process is not None:
                self._kill(process)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        ensure_java()
        kept = {key: os.environ[key] for key in ("PATH", "JAVA_HOME") if key in os.environ}
        environment = {
            **kept,
            "HOME": str(self.directory),
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with open(self._log(name), "wb") as log:
            return subprocess.Popen(
                [str(_HOME / "bin" / "spark-class"), *command],
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _comes_up(self, name: str, process: subprocess.Popen[bytes], said: str) -> bool:
        def answered() -> bool:
            return said in self._log(name).read_text() or process.poll() is not None

        wait_until(answered, f"the Spark {name} to start", timeout_s=120)
        return process.poll() is None

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            kill_machine(psutil.Process(process.pid))
        process.wait()


def kill_machine(worker: psutil.Process) -> list[str]:
    """End a worker as a machine that loses power does: with its executors and their tasks, by signal 9.

    What was running is told by command lines.
    """
    tree = [worker, *worker.children(recursive=True)]
    names = []
    for process in tree:
        try:
            names.append(" ".join(process.cmdline()))
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    return names
