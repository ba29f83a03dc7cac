"""What the READMEs name is there."""

import re
from pathlib import Path

import pytest

from runners.harness.config.paths import conf_dir, config_groups, group_options

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
READMES = ["README.md", "runners/README.md", "tinygpt/README.md", "results/README.md"]


@pytest.mark.parametrize("name", READMES)
def test_every_link_into_the_project_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_every_module_and_script_they_run_exists() -> None:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in READMES)
    modules = set(re.findall(r"-m (runners\.[a-z]+)", text))
    scripts = set(re.findall(r"(scripts/\w+\.py)", text))
    assert modules
    assert scripts
    wanted = [module.replace(".", "/") + ".py" for module in modules] + list(scripts)
    assert [path for path in wanted if not (ROOT / path).is_file()] == []


def test_its_table_of_groups_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", README, flags=re.MULTILINE))
    assert set(rows) == config_groups() - {"experiment"}
    for group, options in rows.items():
        assert set(re.findall(r"[\w.-]+", options)) == set(group_options(group))


@pytest.mark.parametrize("preset", sorted((conf_dir() / "experiment").glob("*.yaml")))
def test_every_preset_says_what_it_is(preset: Path) -> None:
    lines = preset.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("# ") and "@package" not in line for line in lines)
