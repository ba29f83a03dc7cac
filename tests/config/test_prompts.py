"""Prompts are read once a job, so that what a run keeps of their file is what it ran on."""

from pathlib import Path

import pytest

from runners.harness.config import prompts
from runners.harness.config.schema import PromptsConfig, TextPromptConfig
from tests.text_checkpoint import Sample


@pytest.mark.parametrize(
    ("key", "kept", "content"),
    [
        ("file", "prompt.txt", "Holmes{}"),
        ("jsonl", "prompts.jsonl", '"Holmes{}"\n"Watson"\n'),
    ],
)
def test_a_file_that_changes_while_a_job_runs_is_kept_as_it_was_read(
    key: str, kept: str, content: str, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def growing(key: str, path: str) -> str:
        read.append(content.format("!" * len(read)))
        return read[-1]

    monkeypatch.setattr(prompts, "read_utf8", growing)
    ended = sample(f"prompt.{key}=growing.txt", "length.new_tokens=2")
    assert ended.status == 0, ended.err
    assert len(read) == 2  # by the check before anything runs, and by the job
    (cell,) = sample.cells()
    assert (cell / kept).read_text(encoding="utf-8") == read[1]
    assert sample.rows()[0]["prompt"] == "Holmes!"


def test_a_prompt_is_what_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\r\n")
    assert TextPromptConfig().content == ((), {})
    assert TextPromptConfig(text="a").content == (("a",), {})
    assert TextPromptConfig(file=str(path)).content == (("a\r\n",), {"prompt.txt": "a\r\n"})
    path.write_text('"a"\n\n{"prompt": "b"}\n')
    assert PromptsConfig(jsonl=str(path)).content.texts == ("a", "b")
    assert list(PromptsConfig(jsonl=str(path)).content.files) == ["prompts.jsonl"]
