"""What was measured, as DataFrames: the API for notebooks."""

from runners.harness.tables.frames import (
    cache_speedup,
    cells,
    crossovers,
    device_comparison,
    read_csv,
)

__all__ = ["cache_speedup", "cells", "crossovers", "device_comparison", "read_csv"]
