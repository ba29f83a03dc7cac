"""tinygpt: a small Llama-shaped language model, its caches, samplers and engines.

This package knows nothing of Hydra, MLflow or pandas; the experiments are in ``runners``.
"""

__version__ = "0.1.0"
