"""A training run in MLflow: curves by step, in batches, whatever the store does meanwhile."""

from typing import Any

import pytest

from runners.harness.store.tracking import Store, TrackingError
from tests.train_command import Command


def test_the_store_has_curves_params_and_files(done: Command, run_id: str) -> None:
    store = Store(done.results)
    [run] = store.search("train", f"tags.`tinygpt.cell` = '{run_id}'")
    assert run.info.status == "FINISHED"
    assert run.data.tags["tinygpt.kind"] == "train"
    assert run.data.tags["tinygpt.outcome"] == "ok"
    assert run.data.params["train.lr"] == "0.01"
    assert run.data.params["model.n_layers"] == "2"
    assert run.data.params["choice.model"].startswith("tiny")
    assert run.data.metrics["val_loss_nats"] == done.cell(run_id)["metrics"]["val_loss_nats"]
    for name in ("loss_nats", "learning_rate", "tok_per_s", "held_out_loss_nats"):
        points = store.client.get_metric_history(run.info.run_id, name)
        assert [point.value for point in points] == done.rows(run_id, name)
        steps = [5, 10] if name.startswith("held_out") else list(range(1, 11))
        assert [point.step for point in points] == steps
    files = {file.path for file in store.client.list_artifacts(run.info.run_id)}
    assert {"loss.png", "samples.txt", "config.yaml", "steps.jsonl"} <= files


def test_the_figures_go_in_batches(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    batches: list[int] = []
    log_batch = Store(train.results).client.__class__.log_batch

    def count(self: Any, run_id: str, metrics: Any = (), **rest: Any) -> Any:
        batches.append(len(metrics))
        return log_batch(self, run_id, metrics, **rest)

    monkeypatch.setattr("mlflow.tracking.MlflowClient.log_batch", count)
    assert train(capfd, "train.sample_every=0").status == 0
    steps = 5 * 4 + 2
    assert batches[:3] == [0, steps, steps]  # the params, then a batch a look
    assert len(batches) == 4


def test_a_store_that_cannot_be_reached_is_known_before_anything_is_learnt(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Store, *arguments: Any) -> str:
        raise TrackingError("http://127.0.0.1:9: refused")

    monkeypatch.setattr(Store, "open_cell", refuse)
    ended = train(capfd)
    assert ended.status == 2
    assert ended.line == "train: nothing was run; tracking: http://127.0.0.1:9: refused"
    assert not list(train.results.glob("c*/*"))


def test_a_store_that_is_away_for_a_while_gets_everything_in_the_end(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log_steps, calls = Store.log_steps, []

    def away(self: Store, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) <= 3:
            raise TrackingError("gone")
        log_steps(self, *arguments)

    monkeypatch.setattr(Store, "log_steps", away)
    ended = train(capfd)
    assert ended.status == 0
    assert ended.err.count("not tracked for now: gone") == 1
    [run] = Store(train.results).search("train", "")
    points = Store(train.results).client.get_metric_history(run.info.run_id, "loss_nats")
    assert [point.step for point in points] == list(range(1, 11))


def test_a_store_that_stays_away_costs_the_status_and_nothing_else(
    train: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def gone(self: Store, *arguments: Any) -> None:
        raise TrackingError("gone")

    monkeypatch.setattr(Store, "log_steps", gone)
    ended = train(capfd, "out=kept")
    assert ended.status == 1
    [run] = train.ids()
    assert train.cell(run)["outcome"] == "ok"
    assert (train.results / "checkpoints" / "kept" / "model.safetensors").is_file()


def test_a_sweep_is_a_parent_with_its_runs(
    train: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = train(capfd, "-m", "seed=1,2", "train.stop_after=2", "train.sample_every=0")
    assert ended.status == 0, ended.err
    runs = Store(train.results).search("train", "")
    [parent] = [run for run in runs if run.data.tags["tinygpt.kind"] == "sweep"]
    children = [run for run in runs if run.data.tags["tinygpt.kind"] == "train"]
    assert len(children) == 2
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.info.status for run in runs} == {"FINISHED"}
