"""The process that runs something, and whether it still runs."""

import os
import platform
from dataclasses import dataclass
from typing import Literal, Self

import psutil

State = Literal["alive", "gone", "elsewhere"]


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, described so that it can be recognised later, also from another host."""

    host: str
    pid: int
    process_started: float
    """Seconds since 1970. A process id may be used again, but not with the same start time."""

    @classmethod
    def here(cls) -> Self:
        """The process that calls this."""
        started = psutil.Process().create_time()
        return cls(host=platform.node(), pid=os.getpid(), process_started=started)


class Processes:
    """The processes of this host when the object is made. Processes of the host ``gone`` count as
    gone.
    """

    def __init__(self, gone: str | None = None) -> None:
        self.host, self._gone = platform.node(), gone
        self._pids = set(psutil.pids())

    def state(self, owner: Owner) -> State:
        """Whether ``owner`` still runs; ``elsewhere`` if this host cannot tell."""
        if owner.host != self.host:
            return "gone" if owner.host == self._gone else "elsewhere"
        if owner.pid not in self._pids and not psutil.pid_exists(owner.pid):
            return "gone"  # the list may hide other users' processes, so the id is asked for too
        try:
            process = psutil.Process(owner.pid)
            same = abs(process.create_time() - owner.process_started) < 1.0
            return "alive" if same and process.status() != psutil.STATUS_ZOMBIE else "gone"
        except psutil.Error:  # it was there a moment ago, or is hidden
            return "alive"
