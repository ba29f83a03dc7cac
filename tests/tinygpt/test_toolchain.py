"""What torch says while it looks for a compiler is for the user only where it is news."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLKIT_WITHOUT_GPU = """
import torch
torch.version.cuda, torch.cuda._is_compiled, torch.cuda.is_available = "13", lambda: 1, lambda: 0
import tinygpt.engines.toolchain
import torch.utils.cpp_extension as extension
extension.logger.warning("another")
print(extension.CUDA_HOME)
"""


def test_a_cuda_toolkit_without_a_gpu_is_no_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOOLKIT_WITHOUT_GPU],
        cwd=ROOT,
        env=os.environ | {"CUDA_HOME": "/usr"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/usr\n"  # so torch had its reason to warn
    assert done.stderr.count("No CUDA runtime") == 0
    assert "another" in done.stderr
