"""What starts at once loads nothing heavy.

Who may import whom is stated in pyproject.toml and checked by import-linter (``lint-imports``).
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tinygpt.config", "torch numpy hydra omegaconf mlflow pandas"),
        ("tinygpt.cost", "torch numpy"),
        ("tinygpt.tokenizer", "torch numpy"),
        ("tinygpt.engines", "hydra omegaconf mlflow pandas"),
        ("tinygpt.engines", "tinygpt.engines.eager tinygpt.engines.compiled"),
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
