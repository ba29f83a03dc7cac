"""A worker process of a launcher: it imports a job by its name, and nothing else of ours.

No import of ours stands at the head of this module, since the worker imports the module as well.
"""

import json
import multiprocessing
from pathlib import Path
from pkgutil import resolve_name

import pytest


def work(folder: str, results: str, words: list[str]) -> None:
    """What a launcher's worker does for one job: compose its config, and call the job with it."""
    job = resolve_name("runners.bench:job")
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig

    from runners.harness.config.paths import conf_dir

    own = [f"tracking.dir={results}", f"+hydra.runtime.output_dir={folder}", "hydra.mode=RUN"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("bench", [*words, *own], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        job(config)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_composes_and_runs_a_job_that_it_imported_by_name(
    method: str, results: Path
) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"{method} is not known here")
    folder = results / "cells" / "abcd1234"
    # A group by its name, a text that Hydra would make a number, and our resolvers in the paths.
    words = ["batch=1", "model=nano", "length.new_tokens=2", "prompt.text=1e3", "timing=quick"]
    words += ["device.threads=1"]
    worker = multiprocessing.get_context(method).Process(
        target=work, args=(str(folder), str(results), words)
    )
    worker.start()
    worker.join(120.0)
    assert worker.exitcode == 0
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    assert (cell["outcome"], cell["cell"], cell["choices"]["batch"]) == ("ok", "abcd1234", "1")
    assert cell["pid"] == worker.pid
    (row,) = (folder / "generations.jsonl").read_text(encoding="utf-8").splitlines()
    assert bytes(json.loads(row)["prompt_ids"]) == b"1e3"
