"""Whether a process still runs that once wrote down who it is."""

import platform
from collections.abc import Mapping
from typing import Any, Literal

import psutil

State = Literal["alive", "gone", "elsewhere"]


class Processes:
    """The processes of this host, as of when this is made; those of host ``gone`` are gone."""

    def __init__(self, gone: str | None = None) -> None:
        self.host, self._gone = platform.node(), gone
        self._pids = set(psutil.pids())

    def state(self, owner: Mapping[str, Any]) -> State:
        """Whether the process is alive that calls itself by host, pid and process_started."""
        if owner["host"] != self.host:
            return "gone" if owner["host"] == self._gone else "elsewhere"
        pid = int(owner["pid"])
        if pid not in self._pids and not psutil.pid_exists(pid):  # another user's may be hidden
            return "gone"
        try:
            process = psutil.Process(pid)
            same = abs(process.create_time() - float(owner["process_started"])) < 1.0
            return "alive" if same and process.status() != psutil.STATUS_ZOMBIE else "gone"
        except psutil.Error:  # it was there a moment ago, or is hidden
            return "alive"
