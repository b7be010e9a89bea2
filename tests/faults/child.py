"""Run a function in a fork: its result comes back through a pipe, however the process ends."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ended:
    """How a child ended: its result, or the signal that killed it, or the text of an exception."""

    result: Any = None
    signal: int = 0
    error: str = ""
    returned: bool = False


@dataclass
class Child:
    """A running fork. `line` was sent by it before its end."""

    pid: int
    pipe: int

    def wait(self, seconds: float = 110.0) -> Ended:
        """Wait for its end; a child that takes longer is killed and reported as hung."""
        raw, last = b"", time.monotonic() + seconds
        while True:
            left = last - time.monotonic()
            if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                os.close(self.pipe)
                return Ended(error=f"hung: no end after {seconds:.0f} s")
            part = os.read(self.pipe, 2**16)
            if not part:
                break
            raw += part
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return Ended(pickle.loads(raw)[1] if raw else None, signal=os.WTERMSIG(status))
        if not raw:
            return Ended(error=f"the process ended with {os.WEXITSTATUS(status)} and said nothing")
        ok, value = pickle.loads(raw)
        return Ended(value, returned=True) if ok else Ended(error=value)

    def kill(self) -> None:
        """Kill it at once; wait for it afterwards."""
        os.kill(self.pid, signal.SIGKILL)


def start(work: Callable[[], Any]) -> Child:
    """Start `work` in a fork."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    os.close(reading)
    write = os.write  # the work may replace it
    try:
        raw = pickle.dumps((True, work()))
    except BaseException:
        raw = pickle.dumps((False, traceback.format_exc(limit=-6)))
    view = memoryview(raw)
    while view:
        view = view[write(writing, view) :]
    os._exit(0)


def in_child(work: Callable[[], T], seconds: float = 110.0) -> T:
    """Run `work` in a fork and return its result; raises RuntimeError where it did not come to its end."""
    ended = start(work).wait(seconds)
    if not ended.returned:
        raise RuntimeError(ended.error or f"killed by signal {ended.signal}")
    value: T = ended.result
    return value
