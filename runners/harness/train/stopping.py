"""Being asked to stop: Ctrl-C, or SIGTERM as a cluster sends it before it kills."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], str]]:
    """Ctrl-C and SIGTERM as a question to ask between steps, so that weights and AdamW's memory are
    those of one step: which of them came, if any. A second one ends the process at once.
    """
    came: list[str] = []
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(names[signal.Signals(number)])

    here = threading.current_thread() is threading.main_thread()  # signals come nowhere else
    before = {number: signal.signal(number, note) for number in names} if here else {}
    try:
        yield lambda: came[0] if came else ""
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
