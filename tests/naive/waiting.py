"""Waiting for coroutines, threads and processes, without a time that a busy machine could miss."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 120.0
"""Far more seconds than anything here takes, even on a machine that runs other work."""


def until(condition: Callable[[], bool], pause: float = 0.001) -> None:
    """Returns as soon as the condition holds, which is looked at every `pause` seconds. Fails if it never does."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the other threads or processes did not come so far"
        time.sleep(pause)


def end_with_parent() -> None:
    """Ends this process when its input ends, which happens when the process at the other end of the pipe has ended,
    however it did. A program that runs until it is killed would outlive a test run that was killed."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def at_once(work: Callable[[int], object], count: int) -> None:
    """Runs `work(0)`, `work(1)`, ... in so many threads at once. Raises an error of one of them, and fails if one does
    not end."""
    begin = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread did not end"
    if errors:
        raise errors[0]


def result_of(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in a thread of its own. A browser that other tests hold open keeps a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(asyncio.wait_for(coroutine, PATIENCE_S))).result()
