"""The GPU that torch uses, as described by torch and NVML; None if torch has none.

NVML numbers all GPUs of the machine. Torch numbers only those that it may use, perhaps in another
order (CUDA_VISIBLE_DEVICES). So they are matched by UUID, or else by PCI address.
"""

import os
from functools import lru_cache
from typing import Any


def facts() -> dict[str, Any] | None:
    """Facts that do not change. Those from NVML are None without its library or its answer."""
    seen = _seen()
    if seen is None:
        return None
    import torch

    properties, _ = seen
    power = _ask("nvmlDeviceGetEnforcedPowerLimit")
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "uuid": _uuid(properties),
        "cuda": torch.version.cuda or torch.version.hip,
        "driver": _driver(),
        "sm_mhz_max": _ask("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
        "power_limit_w": None if power is None else power / 1000,
    }


def state() -> dict[str, Any] | None:
    """Facts that change from moment to moment."""
    seen = _seen()
    if seen is None:
        return None
    temperature = _ask("nvmlDeviceGetTemperatureV", "NVML_TEMPERATURE_GPU")
    if temperature is None:  # a driver from before 2025
        temperature = _ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")
    memory = _ask("nvmlDeviceGetMemoryInfo")
    return {
        "sm_mhz": _ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        "temperature_c": temperature,
        "memory_used_bytes": None if memory is None else memory.used,
        "other_processes": _others(),
    }


def _others() -> list[dict[str, int | None]] | None:
    """The other processes on the GPU, each with the bytes that it holds; None if unknown."""
    kinds = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    answers = [_ask(kind) for kind in kinds]
    if answers == [None, None]:
        return None
    bytes_of = {process.pid: process.usedGpuMemory for some in answers for process in some or []}
    if os.getpid() not in bytes_of and _holds_memory():
        # NVML gives the machine's process ids, which differ from those in this container.
        return [] if len(bytes_of) == 1 else None
    bytes_of.pop(os.getpid(), None)
    return [{"pid": pid, "bytes": size} for pid, size in sorted(bytes_of.items())]


def _holds_memory() -> bool:
    import torch

    return torch.cuda.memory_reserved() > 0


@lru_cache(maxsize=1)
def _seen() -> tuple[Any, Any] | None:
    """The properties of the GPU that torch uses, and NVML's handle for it."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    except (RuntimeError, AssertionError):  # a GPU that cannot be used
        return None
    return properties, _handle(properties)


def _handle(properties: Any) -> Any:
    nvml = _nvml()
    if nvml is None:
        return None
    uuid = _uuid(properties)
    ways = [(nvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG") if uuid]
    if hasattr(properties, "pci_bus_id"):
        address = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}"
        address += f":{properties.pci_device_id:02x}.0"
        ways.append((nvml.nvmlDeviceGetHandleByPciBusId, address))
    for find, name in ways:
        try:
            return find(name)
        except nvml.NVMLError:
            continue
    return None


def _uuid(properties: Any) -> str | None:
    return str(properties.uuid) if hasattr(properties, "uuid") else None


@lru_cache(maxsize=1)
def _nvml() -> Any:
    """The NVML module, initialised; None without NVIDIA's driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _driver() -> str | None:
    nvml = _nvml()
    try:
        return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return None


def _ask(question: str, *constants: str) -> Any:
    """NVML's answer about the GPU; None if the card, the driver or the Python binding has none."""
    nvml, seen = _nvml(), _seen()
    if nvml is None or seen is None or seen[1] is None:
        return None
    try:
        return getattr(nvml, question)(seen[1], *(getattr(nvml, name) for name in constants))
    except (nvml.NVMLError, AttributeError):
        return None
