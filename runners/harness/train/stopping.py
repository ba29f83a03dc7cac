"""Requests to stop: Ctrl-C, or the SIGTERM that a cluster sends before it kills a process."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], str]]:
    """Yield a function that says which of "Ctrl-C" and "SIGTERM" has come; "" if none has. It is
    asked between steps, so that weights and AdamW's memory are those of one step. A second request
    raises KeyboardInterrupt at once.
    """
    came: list[str] = []
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(names[signal.Signals(number)])

    here = threading.current_thread() is threading.main_thread()  # signals reach only this one
    before = {number: signal.signal(number, note) for number in names} if here else {}
    try:
        yield lambda: came[0] if came else ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
