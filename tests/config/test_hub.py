"""A checkpoint by its Hugging Face id: fetched once, kept with its commit, found without a network.

huggingface_hub reads its settings where it is imported: each command is a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runners.harness.config import hub, paths
from runners.harness.config.conversion import from_dict
from runners.harness.config.schema import BenchConfig
from runners.harness.errors import UsageError
from tests.hub_server import HubServer
from tests.tinygpt.test_architectures import Saved
from tests.tinygpt.test_hf_tokenizer import byte_level
from tests.train_command import Ended

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("length.new_tokens=2", "timing=quick", "device.threads=1")
TOKEN = "hf_secretsecretsecret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen2 in shards, beside files that are not to be fetched."""
    found = tmp_path_factory.mktemp("models") / "qwen2"
    Saved("qwen2", found, vocab_size=400)
    byte_level(found)
    for name in ("pytorch_model.bin", "consolidated.safetensors", "model.gguf", "README.md"):
        (found / name).write_bytes(b"x" * 100)
    return found


@pytest.fixture
def server(folder: Path) -> Iterator[HubServer]:
    """A hub with that checkpoint as ``org/name``."""
    with HubServer() as made:
        made.publish("org/name", folder)
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def call(server: HubServer, results: Path, tmp_path: Path) -> Callable[..., Ended]:
    """Call ``python -m runners.NAME`` with that hub, and a cache of the test's own."""

    def call(name: str, *arguments: str, **settings: str) -> Ended:
        command = [sys.executable, "-m", f"runners.{name}", *arguments, f"tracking.dir={results}"]
        mine = {"HF_ENDPOINT": server.base, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN}
        found = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment = found | mine | {"PYTHONPATH": str(ROOT)} | settings
        here = tmp_path / "here"
        here.mkdir(exist_ok=True)
        ended = subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, check=False
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return call


def stop(server: HubServer) -> None:
    """Refuse all further connections."""
    server.shutdown()
    server.server_close()


def cells(results: Path) -> list[dict[str, Any]]:
    """cell.json of every cell with its stored config, in order of time."""
    found = []
    for path in results.glob("cells/*/cell.json"):
        config = yaml.safe_load((path.parent / "config.yaml").read_text(encoding="utf-8"))
        found.append(json.loads(path.read_text(encoding="utf-8")) | {"config": config})
    return sorted(found, key=lambda cell: str(cell["started"]))


def test_an_id_is_kept_with_its_commit_and_found_again_without_a_network(
    server: HubServer, folder: Path, call: Callable[..., Ended], results: Path
) -> None:
    commit = server.commit("org/name", folder)
    ended = call("bench", "checkpoint=org/name", *QUICK)
    assert ended.status == 0, ended.err
    said, *_ = ended.err.splitlines()
    assert said.startswith("org/name: fetching its weights from 127.0.0.1")
    assert "model org/name, " in ended.out
    (cell,) = cells(results)
    assert cell["config"]["checkpoint"] == f"org/name@{commit}"
    assert cell["choices"]["model"] == "org/name"
    weights = sorted(path.name for path in folder.glob("model-*.safetensors"))
    beside = [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert len(weights) > 1
    assert sorted(server.sent) == sorted([*beside, *weights])
    assert server.tokens == {f"Bearer {TOKEN}"}

    server.publish("org/name", folder.parent / "newer")
    stop(server)
    for words in (
        ("rerun", "run=latest", "strict=true"),
        ("bench", "checkpoint=org/name", *QUICK),
        ("bench", f"checkpoint=org/name@{commit}", *QUICK),
    ):
        ended = call(*words)
        assert ended.status == 0, ended.err
        assert len(ended.err.splitlines()) == 1, ended.err  # no bars, no complaints, no fetching
        assert cells(results)[-1]["config"]["checkpoint"] == f"org/name@{commit}"
    assert len({cell["tags"]["tinygpt.cell_hash"] for cell in cells(results)}) == 1
    for path in (path for path in results.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes(), path


def test_a_branch_is_kept_as_its_commit(
    server: HubServer, folder: Path, call: Callable[..., Ended], results: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    facts = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(facts | {"rms_norm_eps": 1e-3}))
    commit = server.publish("org/name", other, "refs/pr/1")
    words = ("checkpoint=org/name@refs/pr/1", "prompt.text=the river", *QUICK[::2])
    ended = call("sample", *words)
    assert ended.status == 0, ended.err
    (cell,) = cells(results)
    assert cell["config"]["checkpoint"] == f"org/name@{commit}"
    assert cell["config"]["model"]["norm_eps"] == 1e-3
    assert cell["choices"]["model"] == "org/name"


def test_a_model_that_is_not_supported_is_refused_before_its_weights_are_fetched(
    server: HubServer, call: Callable[..., Ended], folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    server.publish("org/mamba", other)
    ended = call("bench", "-m", "checkpoint=org/name,org/mamba", *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert "bench: checkpoint=org/mamba: " in ended.err.splitlines()[-1]
    assert "model_type=mamba: is not supported" in ended.err.splitlines()[-1]
    server.sent.clear()
    ended = call("sample", "checkpoint=org/mamba")
    assert (ended.status, ended.out) == (2, "")
    assert "model_type=mamba: is not supported" in ended.line
    assert not [name for name in server.sent if "safetensors" in name]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("org/none", "HOST has no such repository, or a private one; for that log in"),
        ("org/private", "HOST has no such repository, or a private one; for that log in"),
        ("org/gated", "HOST is gated; accept its terms at HOST/org/gated, then log in"),
        ("org/name@dev", "HOST has no revision dev; give one of its branches, tags or commits"),
        ("org/broken", "HOST did not give it (HTTP status 418), nor is it in the cache"),
        ("org/files", "has no config.json; it has .gguf files instead: download one of them"),
        ("org/pickled", "has no model.safetensors; it has pickles instead, which can run code"),
        ("org/text", "has no config.json, and is no checkpoint that transformers saved"),
    ],
)
def test_what_cannot_be_fetched_is_one_line_and_nothing_is_run(
    word: str,
    line: str,
    server: HubServer,
    call: Callable[..., Ended],
    folder: Path,
    results: Path,
    tmp_path: Path,
) -> None:
    for name in ("gated", "private", "broken"):
        server.refused[f"org/{name}"] = name
    for name, files in (
        ("files", ["README.md", "model.gguf"]),
        ("pickled", ["config.json", "pytorch_model.bin"]),
        ("text", ["README.md"]),
    ):
        (tmp_path / name).mkdir()
        for file in files:
            shutil.copy(folder / file, tmp_path / name)
        server.publish(f"org/{name}", tmp_path / name)
    ended = call("bench", f"checkpoint={word}", *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert ended.line.startswith(f"bench: checkpoint={word}: no such path, and ")
    assert line.replace("HOST", server.base.removeprefix("http://")) in ended.line
    assert TOKEN not in ended.line
    assert not (results / "cells").exists()


def test_without_a_network_what_is_not_in_the_cache_is_one_line(
    server: HubServer, call: Callable[..., Ended]
) -> None:
    ended = call("bench", "checkpoint=org/name", *QUICK, HF_HUB_OFFLINE="1")
    assert (ended.status, ended.out) == (2, "")
    assert "(HF_HUB_OFFLINE is set), nor is it in the cache of huggingface_hub" in ended.line
    stop(server)
    ended = call("bench", "checkpoint=org/name", *QUICK)
    assert (ended.status, ended.out) == (2, "")
    assert "checkpoint=org/name: no such path, and 127.0.0.1" in ended.line
    assert "did not give it (ConnectError: " in ended.line


def test_weights_that_were_half_fetched_are_fetched_whole(
    server: HubServer, call: Callable[..., Ended], folder: Path, tmp_path: Path
) -> None:
    words = ("bench", "checkpoint=org/name", "model.n_layers=5")  # refused, once it is fetched
    assert "model.n_layers=5: checkpoint=org/name has 4" in call(*words).err
    shard = next((tmp_path / "hf").rglob("model-00003*.safetensors"))
    shard.resolve().unlink()
    shard.unlink()
    server.sent.clear()
    call(*words)
    assert server.sent == [shard.name]


def test_a_path_goes_first_and_a_rerun_may_take_an_id_for_it(
    server: HubServer, call: Callable[..., Ended], folder: Path, results: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(folder, tmp_path / "here" / "org" / "name")
    ended = call("bench", "checkpoint=org/name", *QUICK)
    assert ended.status == 0, ended.err
    assert cells(results)[-1]["config"]["checkpoint"] == str(mine)
    assert cells(results)[-1]["choices"]["model"] == "name"
    (mine / "config.json").unlink()
    for word in ("org/name", "org/name/model", "./org/other", "org/other.gguf"):
        ended = call("bench", f"checkpoint={word}", *QUICK)
        assert (ended.status, ended.out) == (2, "")
        assert f"checkpoint={word}: no such checkpoint; give none, a folder" in ended.line
    assert server.sent == []
    commit = server.publish("org/twin", folder)
    ended = call("rerun", "run=latest", "checkpoint=org/twin")
    assert ended.status == 0, ended.err
    assert cells(results)[-1]["config"]["checkpoint"] == f"org/twin@{commit}"


@pytest.mark.parametrize("word", ["a/b", "A-1/b_2.c", "a/b@main", "a/b@refs/pr/1", "a/b@v1.0-rc.1"])
def test_forms_of_an_id(word: str) -> None:
    assert hub.is_id(word)
    assert hub.shown(word) == word.partition("@")[0]


@pytest.mark.parametrize(
    "word",
    "a a/b/c /a/b ./a/b ~/a/b ../b a/.. a/b.gguf a/b.git a--b/c a/b@ a/b@../../x -a/b a/é".split(),
)
def test_forms_of_no_id(word: str) -> None:
    assert not hub.is_id(word)


def test_without_the_package_the_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    line = r"checkpoint=a/b: no such path, and .*; pip install 'tinygpt\[hf\]'"
    with pytest.raises(UsageError, match=line):
        from_dict({"checkpoint": "a/b", "tracking": {"dir": "x"}}, BenchConfig)
    with pytest.raises(ValueError, match=line):
        paths.find_checkpoint("a/b", "x")
