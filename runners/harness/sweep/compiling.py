"""What a cell has to compile before it runs, for the estimate of a sweep's time."""

from runners.harness.config.schema import BenchConfig
from runners.harness.machine import system
from tinygpt.engines import compile_times
from tinygpt.engines.compile_times import Part, Times


def past() -> Times:
    """How long compiling took on this machine before."""
    return compile_times.read()


def parts(config: BenchConfig) -> list[Part]:
    """The code that a cell needs: decode step and limit's products; uncached, the window pass."""
    if config.engine.kind != "compiled" or config.length.new_tokens == 0:
        return []
    cached = config.cache.kind != "none"
    threads = config.device.threads or system.usable_cores()
    shape = compile_times.shape(config.model, config.device.kind, threads)
    precision = config.precision.kind
    if not cached and precision == "int8":
        precision = "fp32"  # the window pass uses the eager model's fp32 weights
    model, batch = config.model, config.batch.size
    return [
        Part(f"{kind} {batch} {precision} {shape}", kind, model.n_layers, batch, precision, shape)
        for kind in (("decodestep", "products") if cached else ("windowpass",))
    ]


def missing(config: BenchConfig, times: Times) -> list[Part]:
    """The parts of a cell's code that are not on disk from an earlier compile."""
    return [part for part in parts(config) if not times.kept(part)]
