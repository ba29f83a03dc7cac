"""The doctor: finds and mends what a crash or a move left behind.

Each finding is mended before the next one is looked for, so that later ones build on it. The
folders are read first, then the processes, then the store. So what is read later shows everything
that a process did before it ended.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from runners.harness import terminal
from runners.harness.config.schema import DoctorConfig
from runners.harness.doctor import diagnosis
from runners.harness.doctor import prune as doctor_prune
from runners.harness.doctor.database import locations, schema
from runners.harness.doctor.diagnosis import Context
from runners.harness.doctor.disk import Finding, scan
from runners.harness.errors import UsageError, first_line
from runners.harness.launch.folders import check_writable
from runners.harness.store.runs import Runs, read_runs
from runners.harness.store.tracking import Store, open_store


def run(config: DoctorConfig) -> int:
    """Report what is wrong, and mend it if asked to; returns how many findings are left."""
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    store = open_store(config.tracking)
    if config.prune and store.own_database is None:
        raise UsageError(
            f"prune={config.prune}: is for the store in tracking.dir, and {store.uri} is another; "
            "delete old runs in its UI, then `mlflow gc` on the server"
        )
    if not store.dir.is_dir():
        print(f"nothing to mend in {store.dir}: no such folder")
        return 0
    if config.fix:
        check_writable(store)
    with _alone(store.dir) if config.fix else nullcontext():
        return _treat(findings(store, config), config.fix, store.dir)


def _alone(folder: Path) -> AbstractContextManager[object]:
    lock = FileLock(folder / "doctor.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        terminal.complain(f"another doctor is at work in {folder}; waiting for it")
        return lock.acquire()


def _treat(found: Iterable[Finding], fix: bool, folder: Path) -> int:
    done = left = mendable = 0
    for finding in found:
        if not finding.counts:
            print(f"note: {finding.what}; {finding.cure}")
        elif finding.mend is None:
            left += 1
            print(f"{finding.what}; {finding.cure}")
        elif not fix:
            left, mendable = left + 1, mendable + 1
            print(f"{finding.what}; fix=true {finding.cure}", flush=True)
        else:
            try:
                print(f"{finding.what}; {finding.mend()}", flush=True)
                done += 1
            except Exception as error:  # about one sweep; the others can still be mended
                left += 1
                print(f"{finding.what}; not mended: {first_line(error)}", flush=True)
    print(_summary(done, left, mendable, fix, folder))
    return left


def _summary(done: int, left: int, mendable: int, fix: bool, folder: Path) -> str:
    if not done and not left:
        return f"nothing to mend in {folder}"
    if fix:
        return f"{done} mended" + (f", {left} left" if left else "")
    count = "1 finding" if left == 1 else f"{left} findings"
    all_of_them = "it" if left == 1 else "them"
    return f"{count}; fix=true mends {all_of_them if mendable == left else mendable or 'none'}"


def findings(store: Store, config: DoctorConfig) -> Iterator[Finding]:
    """Find everything that is wrong."""
    begun_ms = int(time.time() * 1000)
    file = store.own_database
    file = file if file and file.is_file() else None
    broken = schema(file) if file else None
    if broken:
        yield broken
    elif file:
        yield from locations(file)
    results, processes = scan(store.dir, config.gone)
    runs: Runs | None = None
    if broken:
        runs = Runs([]) if broken.mend else None
    else:
        try:
            runs = read_runs(store)
        except Exception as error:  # from MLflow, a server, or sqlite
            yield Finding(f"{store.uri}: {first_line(error)}", "what it has cannot be told")
    pruned: set[str] = set()
    if runs and config.prune:
        age = config.prune, config.prune_s
        for identity, finding in doctor_prune.old(store, results, processes, runs, *age):
            if finding.counts:
                pruned.add(identity)
            yield finding
    context = Context(store, processes, runs, begun_ms)
    for result in results:
        if result.identity not in pruned:
            yield from diagnosis.findings(context, result)
    if runs:
        yield from diagnosis.orphans(context, runs, results, pruned)
    for uri, count in context.elsewhere.items():
        what = f"{count} of what is here was tracked at {uri}, not at {store.uri}"
        yield Finding(what, f"tracking.uri={uri} looks at them", counts=False)
