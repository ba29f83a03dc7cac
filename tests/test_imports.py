"""Who may import whom: imports point up one list, and what starts at once loads nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"hydra", "omegaconf", "mlflow", "pandas", "runners"}

# Low to high: a module may import only what stands before it.
LIBRARY = (
    "config tokenizer weights seeds rope cache model reference cost sampling generation "
    "quantisation checkpoint engines"
).split()
HARNESS = (
    "errors paths text_files stats schema text_schema train_schema tools_schema schemas checks "
    "machine gpu "
    "drift environment stopping baselines gate overrides config presets corpus record identity "
    "inputs result guard metrics timing limit cell plan progress training train_report "
    "train_state train_progress train_run local_store experiments tracking stored filters stream "
    "noise tables engine_table columns render runs_table comparison comparison_screen app folders "
    "keep delivery doctor_disk doctor_store doctor_file doctor_deliver doctor_prune doctor_unit "
    "doctor verify_report watch sampler_checks cache_checks faults verify_screen verify_run "
    "sample_screen text_figures sample_run sample_grid race_run race_screen resume plan_report "
    "sweep kinds original verdict rerun_run sweeper"
).split()
# Hydra looks the sweeper up only once the app runs it.
LATE = {("app", "sweeper")}


def imports(path: Path) -> list[tuple[str, bool]]:
    """Dotted names imported anywhere in a file, and whether at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, node in tree.body) for name in names]
    return found


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def unit(path: Path, package: str) -> str:
    """The entry of the list that a file belongs to."""
    return path.relative_to(ROOT / package).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sources("tinygpt"), ids=lambda path: path.name)
def test_the_library_knows_nothing_of_the_experiments(path: Path) -> None:
    assert {name.split(".")[0] for name, _ in imports(path)}.isdisjoint(FORBIDDEN)


@pytest.mark.parametrize(("package", "order"), [("tinygpt", LIBRARY), ("runners/harness", HARNESS)])
def test_imports_point_up_the_list(package: str, order: list[str]) -> None:
    prefix = package.replace("/", ".") + "."
    wrong = []
    for path in sources(package):
        here = unit(path, package)
        if here == "__init__":
            continue
        assert here in order, f"{package}/{here}: give it its place in this file's list"
        for name, top_level in imports(path):
            there = name.removeprefix(prefix).split(".")[0]
            if not name.startswith(prefix) or there == here or there not in order:
                continue
            late = (here, there) in LATE and not top_level
            if order.index(there) > order.index(here) and not late:
                wrong.append(f"{here} imports {there}")
    assert wrong == []


def test_nothing_imports_an_entry_point() -> None:
    entries = {f"runners.{path.stem}" for path in (ROOT / "runners").glob("[!_]*.py")}
    assert {"runners.bench", "runners.tables"} <= entries
    for path in [*sources("tinygpt"), *sources("runners/harness")]:
        for name, _ in imports(path):
            assert not {name, name.rpartition(".")[0]} & entries, f"{path} imports {name}"


def test_an_entry_point_imports_no_other() -> None:
    """Itself it does, by name: a launcher's worker has to find the job."""
    for path in (ROOT / "runners").glob("[!_]*.py"):
        others = {f"runners.{other.stem}" for other in (ROOT / "runners").glob("[!_]*.py")}
        others.remove(f"runners.{path.stem}")
        for name, _ in imports(path):
            assert not {name, name.rpartition(".")[0]} & others, f"{path} imports {name}"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tinygpt.config", "torch numpy hydra omegaconf mlflow pandas"),
        ("tinygpt.cost", "torch numpy"),
        ("tinygpt.tokenizer", "torch numpy"),
        ("tinygpt.engines", "hydra omegaconf mlflow pandas"),
        ("tinygpt.checkpoint", "hydra omegaconf mlflow pandas"),
        ("runners.harness.config.schema", "torch numpy hydra mlflow pandas"),
        ("runners.bench", "torch mlflow pandas scipy"),
        ("runners.tables", "torch mlflow pandas scipy"),
        ("runners.sample", "torch mlflow pandas scipy"),
        ("runners.verify", "torch mlflow pandas scipy"),
        ("runners.race", "torch mlflow pandas scipy"),
        ("runners.rerun", "torch mlflow pandas scipy"),
        ("runners.compare", "torch mlflow pandas scipy"),
        ("runners.doctor", "torch mlflow pandas scipy"),
    ],
)
def test_importing_loads_nothing_heavy(module: str, heavy: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({heavy.split()}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
