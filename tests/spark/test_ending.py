"""What is done before SIGTERM ends a process: seen from outside of it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from types import SimpleNamespace
from trivium_spark.ending import at_end, end_put_off, forget_end

def tell(text):
    print(text, flush=True)

def kill():
    os.kill(os.getpid(), signal.SIGTERM)

def last():
    tell("last")

"""

STOPPED_TWICE = """
from pyspark.sql.types import StructType
from trivium_spark.options import parse_read_options
from trivium_spark.reader import TriviumStreamReader

options = parse_read_options({"url": "trivium://localhost", "stream": "s"}, is_streaming=True)
reader = TriviumStreamReader(options, StructType())

def release():
    kill()
    tell("released")

reader._connection = SimpleNamespace(release=release, close=lambda: tell("closed"))
at_end(reader.stop)
reader.stop()
"""


@pytest.mark.parametrize(
    ("code", "told", "status"),
    [
        pytest.param("at_end(last); kill()", ["last"], -signal.SIGTERM, id="once"),
        pytest.param("at_end(last); at_end(last); kill()", ["last"], -signal.SIGTERM, id="twice"),
        pytest.param("at_end(last); forget_end(); kill()", [], -signal.SIGTERM, id="forgotten"),
        pytest.param("at_end(lambda: 1 / 0); kill()", [], -signal.SIGTERM, id="fails"),
        pytest.param("at_end(last)", [], 0, id="no-signal"),
        pytest.param(
            "at_end(lambda: (kill(), last(), forget_end(), kill(), tell('more'))); kill()",
            ["last", "more"],
            -signal.SIGTERM,
            id="signal-while-it-ends",
        ),
        pytest.param(
            "at_end(last)\nwith end_put_off():\n    kill()\n    tell('first')",
            ["first", "last"],
            -signal.SIGTERM,
            id="put-off",
        ),
        pytest.param(
            "signal.signal(signal.SIGTERM, lambda *_: tell('other')); at_end(last); kill()",
            ["other"],
            0,
            id="of-another",
        ),
        pytest.param(
            "import threading; t = threading.Thread(target=at_end, args=[last])\n"
            "t.start(); t.join(); kill()",
            [],
            -signal.SIGTERM,
            id="not-in-a-thread",
        ),
        pytest.param(STOPPED_TWICE, ["released", "closed"], -signal.SIGTERM, id="while-it-stops"),
    ],
)
def test_what_is_done_before_the_end(code: str, told: list[str], status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, timeout=300
    )
    assert (ended.stdout.split(), ended.returncode) == (told, status)
