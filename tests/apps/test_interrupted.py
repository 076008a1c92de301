"""Ctrl-C that comes while Python runs code that cannot raise is not lost."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import signal
import time
from edge.apps import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

class Ending:
    def __del__(self):
        raise KeyboardInterrupt

def command(**_):
    Ending()
    time.sleep(30)
    print("it went on")

cli.edge.main = command
cli.main()
"""


def test_an_interrupt_in_what_cannot_raise_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "edge: interrupted\n")
