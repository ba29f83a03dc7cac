"""What rounding the weights costs: loss of a checkpoint on a held-out text, by precision.

    python scripts/precision_loss.py --corpus results/corpus/holmes.txt

The text is cut as in training, so its tail is one that the model has not seen (holmes: the last 5 %
of the canon, which scripts/fetch_corpus.py fetches). Exits 1 where a precision loses more than is
allowed: 0.005 nats in bf16, 0.02 in int8.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from runners.harness.config.paths import results_dir
from runners.harness.train.corpus import read_text, split
from runners.harness.train.trainer import mean_held_out_nats
from tinygpt.checkpoint import cast, load_model
from tinygpt.config import PRECISION_KINDS, PrecisionConfig
from tinygpt.tokenizer import Tokenizer
from tinygpt.weights import hf_config

ALLOWED = {"fp32": 0.0, "bf16": 0.005, "int8": 0.02}
"""Nats a token that a precision may lose against fp32."""
BATCH = 8


def losses(folder: Path, tail: str) -> dict[str, float]:
    """Nats a token on ``tail`` of the checkpoint in ``folder``, by precision."""
    config = hf_config.read(json.loads((folder / "config.json").read_text("utf-8")))
    ids = torch.tensor(Tokenizer.load(folder / "tokenizer.json").encode(tail))
    found = {}
    for kind in PRECISION_KINDS:
        model = cast(load_model(folder, config), PrecisionConfig(kind=kind), torch.device("cpu"))
        with torch.inference_mode():
            found[kind] = mean_held_out_nats(model, ids, BATCH)
    return found


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=results_dir() / "checkpoints" / "holmes")
    parser.add_argument("--corpus", default=str(results_dir() / "corpus" / "holmes.txt"))
    parser.add_argument("--held-out", type=float, default=0.05)
    options = parser.parse_args()
    try:
        found = losses(options.checkpoint, split(read_text(options.corpus), options.held_out)[1])
    except (ValueError, OSError) as error:
        print(f"precision_loss: {error}", file=sys.stderr)
        return 2
    print("precision  nats a token  above fp32  allowed")
    for kind, loss in found.items():
        print(f"{kind:9}  {loss:12.4f}  {loss - found['fp32']:+10.4f}  {ALLOWED[kind]:7.3f}")
    return int(any(loss - found["fp32"] > ALLOWED[kind] for kind, loss in found.items()))


if __name__ == "__main__":
    sys.exit(main())
