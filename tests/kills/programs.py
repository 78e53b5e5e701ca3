"""The programs that are killed: started, found among the processes of this machine, started again.

Only what was started here, and what that has started, is ever killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

from interop.brokers import ROOT

END_SECONDS: Final = 900.0


class Program:
    """``python -m MODULE ARGUMENTS``, in a process group of its own, with its log in a file."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self.log = folder / f"{module.rpartition('.')[2]}-{arguments[-1].replace('/', '_')}.log"
        self.environment = dict(os.environ)
        self.process: subprocess.Popen[bytes] | None = None
        #: every process of it that was seen
        self._seen: set[psutil.Process] = set()
        #: how often it was started again since it had ended by itself
        self.failures = 0

    def start(self, *further: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module, *self._arguments, *further],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.environment,
                start_new_session=True,
            )

    def go_on(self) -> None:
        """Start it again if it has ended by itself."""
        assert self.process is not None
        if self.process.poll() is not None:
            self.failures += 1
            self.clean_up()
            self.start()

    def kill(self) -> None:
        """The process, none that it has started."""
        assert self.process is not None
        self.processes()
        self.process.kill()
        self.process.wait()

    def processes(self) -> list[psutil.Process]:
        """Those that it has started, and those that these have."""
        assert self.process is not None
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
        self._seen.update(found)
        return found

    def end(self) -> int:
        """Wait for its end by itself; the exit code."""
        assert self.process is not None
        return self.process.wait(END_SECONDS)

    def clean_up(self) -> None:
        """Kill what is left of it."""
        assert self.process is not None
        self.processes()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for each in self._seen:
            # psutil knows one that has taken over its number.
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._seen.clear()


class Driver(Program):
    """A driver of Spark: Python and a JVM, and what these have started."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        super().__init__(folder, module, *arguments)
        self.environment |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """The driver, both its processes; all others have to see by themselves that it is gone."""
        assert self.process is not None
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                if each.ppid() == self.process.pid:
                    each.kill()
        super().kill()


class Query(Driver):
    """``tests.kills.query``, with executors and their Python workers."""

    def __init__(self, folder: Path, road: str, url: str) -> None:
        super().__init__(folder, "tests.kills.query", road, url, str(folder))
        # Executors work where Spark is installed, unless it is installed elsewhere.
        home = folder / "spark"
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
        (home / "work").unlink(missing_ok=True)
        self.log = folder / "query.log"
        self.environment["SPARK_HOME"] = str(home)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of the executors."""
        name = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        return [each for each in self.processes() if _runs(each, name)]

    def workers(self) -> list[psutil.Process]:
        """Processes in Python that read and write for the executors, or plan for the driver."""
        return [each for each in self.processes() if _runs(each, "pyspark.")]


def _runs(process: psutil.Process, name: str) -> bool:
    try:
        return any(argument.startswith(name) for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False
