"""tinygpt: a small language model of Llama's architecture, with its caches, samplers and engines.

This package does not use Hydra, MLflow or pandas; the experiments are in ``runners``.
"""

__version__ = "0.1.0"
