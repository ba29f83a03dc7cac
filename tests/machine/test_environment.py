"""What is recorded of machine, GPU and code, on platforms that tell it and on those that do not."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from runners.harness.config.schema import DeviceConfig
from runners.harness.machine import environment, gpu, system
from runners.harness.machine.changes import Difference, differences
from runners.harness.measure import subject
from runners.harness.measure.result import CellResult
from runners.harness.store import disk
from runners.harness.store.disk import Place
from runners.harness.store.records import write_json

Files = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Let the system's files be these alone: ``files(("proc/cpuinfo", text), …)``."""
    root = tmp_path / "system"
    root.mkdir()
    monkeypatch.setattr(system, "SYSTEM", root)

    def put(*contents: tuple[str, str]) -> None:
        for path, text in contents:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n", encoding="utf-8")

    return put


GROUP = "sys/fs/cgroup"
QUOTAS: dict[str, tuple[list[tuple[str, str]], float | None, int]] = {
    "none told": ([], None, 8),
    "v2, a container": ([("0::/", ""), ("cpu.max", "150000 100000")], 1.5, 1),
    "v2, no limit": ([("0::/", ""), ("cpu.max", "max 100000")], None, 8),
    "v2, less than a core": ([("0::/", ""), ("cpu.max", "50000 100000")], 0.5, 1),
    "v2, more than there are": ([("0::/", ""), ("cpu.max", "1600000 100000")], 16.0, 8),
    "v2, the group around it is tighter": (
        [
            ("0::/user/job", ""),
            ("user/job/cpu.max", "400000 100000"),
            ("user/cpu.max", "300000 100000"),
            ("other/cpu.max", "100000 100000"),
        ],
        3.0,
        3,
    ),
    "v2, outside the namespace": ([("0::/../x", ""), ("cpu.max", "200000 100000")], 2.0, 2),
    "v1": (
        [
            ("4:memory:/\n3:cpu,cpuacct:/job\n0::/", ""),
            ("cpu/job/cpu.cfs_quota_us", "250000"),
            ("cpu/job/cpu.cfs_period_us", "100000"),
            ("cpu/cpu.cfs_quota_us", "-1"),
            ("cpu/cpu.cfs_period_us", "100000"),
        ],
        2.5,
        2,
    ),
    "v1, no limit": (
        [
            ("1:cpu:/", ""),
            ("cpu/cpu.cfs_quota_us", "-1"),
            ("cpu/cpu.cfs_period_us", "100000"),
        ],
        None,
        8,
    ),
    "nonsense": ([("0::/", ""), ("cpu.max", "much 0")], None, 8),
    "a period of none": ([("0::/", ""), ("cpu.max", "100000 0")], None, 8),
}


def grouped(files: Files, contents: list[tuple[str, str]]) -> None:
    """The first is what /proc/self/cgroup says, the others are files below the groups' mount."""
    for number, (path, text) in enumerate(contents):
        files((f"{GROUP}/{path}", text) if number else ("proc/self/cgroup", path))


@pytest.mark.parametrize("case", QUOTAS)
def test_the_quota_cuts_the_usable_cores(
    case: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, quota, usable = QUOTAS[case]
    monkeypatch.setattr(system, "affinity", lambda: list(range(8)))
    grouped(files, contents)
    assert system.cpu_quota() == quota
    assert system.usable_cores() == usable


LIMITS: dict[str, tuple[list[tuple[str, str]], int | None, int]] = {
    "none told": ([], None, 10_000),
    "v2": ([("0::/", ""), ("memory.max", "4000"), ("memory.current", "3000")], 4000, 1000),
    "v2, no limit": ([("0::/", ""), ("memory.max", "max"), ("memory.current", "3")], None, 10_000),
    "v2, files read long ago": (
        [
            ("0::/", ""),
            ("memory.max", "4000"),
            ("memory.current", "3000"),
            ("memory.stat", "anon 500\ninactive_file 2000\nactive_file 500"),
        ],
        4000,
        3000,
    ),
    "v2, two groups": (
        [
            ("0::/a", ""),
            ("a/memory.max", "4000"),
            ("a/memory.current", "10"),
            ("memory.max", "9000"),
            ("memory.current", "8500"),
        ],
        4000,
        500,
    ),
    "v2, beyond its limit": (
        [("0::/", ""), ("memory.max", "4000"), ("memory.current", "4100")],
        4000,
        0,
    ),
    "v1": (
        [
            ("8:memory:/job", ""),
            ("memory/job/memory.limit_in_bytes", "4000"),
            ("memory/job/memory.usage_in_bytes", "3000"),
            ("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1000"),
            ("memory/memory.limit_in_bytes", "9223372036854771712"),
            ("memory/memory.usage_in_bytes", "5000"),
        ],
        4000,
        2000,
    ),
    "v1, no limit": (
        [
            ("8:memory:/", ""),
            ("memory/memory.limit_in_bytes", "9223372036854771712"),
            ("memory/memory.usage_in_bytes", "5000"),
        ],
        None,
        10_000,
    ),
    "v2, more than the machine has": (
        [("0::/", ""), ("memory.max", "90000"), ("memory.current", "0")],
        90_000,
        10_000,
    ),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_control_groups_limit_the_memory(
    case: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, limit, available = LIMITS[case]
    whole = SimpleNamespace(total=20_000, available=10_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    grouped(files, contents)
    assert system.memory()["memory_limit_bytes"] == limit
    assert system.memory()["memory_bytes"] == 20_000
    assert system.available_bytes() == available


X86 = (
    "processor : 0\nmodel name\t: Xeon: 6\ncpu MHz\t\t: 2100.5\n\nmodel name : another\ncpu MHz : 1"
)
ARM = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n\nprocessor : 1"
CPU0 = "sys/devices/system/cpu/cpu0/cpufreq"


@pytest.mark.parametrize(
    ("contents", "model", "mhz", "mhz_max", "governor"),
    [
        ([("proc/cpuinfo", X86)], "Xeon: 6", 2100.5, None, None),
        ([("proc/cpuinfo", ARM)], "0x41 0xd40", None, None, None),
        (
            [
                ("proc/cpuinfo", X86),
                (f"{CPU0}/scaling_cur_freq", "1800000"),
                (f"{CPU0}/cpuinfo_max_freq", "3500000"),
                (f"{CPU0}/scaling_governor", "powersave"),
            ],
            "Xeon: 6",
            1800.0,
            3500.0,
            "powersave",
        ),
    ],
    ids=["a virtual machine", "arm", "with a governor"],
)
def test_the_processor(
    contents: list[tuple[str, str]],
    model: str,
    mhz: float | None,
    mhz_max: float | None,
    governor: str | None,
    files: Files,
) -> None:
    files(*contents)
    cpu = system.cpu()
    assert (cpu["model"], system.mhz(), cpu["mhz_max"]) == (model, mhz, mhz_max)
    assert cpu["governor"] == governor


@pytest.fixture
def elsewhere(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither /proc nor control groups nor affinity, and psutil does not know the clock."""
    for name in ("sched_getaffinity", "getloadavg"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.delattr(psutil.Process, "cpu_affinity", raising=False)
    monkeypatch.delattr(psutil, "cpu_freq", raising=False)
    monkeypatch.setattr(psutil, "swap_memory", lambda: 1 / 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(platform, "processor", lambda: "")


@pytest.mark.usefixtures("elsewhere")
def test_what_a_platform_does_not_tell_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOT", ROOT / "tests" / "nowhere")
    monkeypatch.setattr(environment, "code", environment.code.__wrapped__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = environment.collect.__wrapped__()
    assert facts["cpu"]["usable"] == 6
    unknown = ("model", "affinity", "quota", "governor", "mhz_max")
    assert [facts["cpu"][name] for name in unknown] == [None] * 5
    assert facts["memory_limit_bytes"] is facts["swap_bytes"] is facts["gpu"] is None
    assert set(facts["code"]) == {"version", "sha256"}
    state = environment.state()
    assert state.pop("memory_available_bytes") > 0
    assert set(state.values()) == {None}
    json.dumps(facts)


@pytest.mark.usefixtures("elsewhere")
def test_a_mac_names_its_processor_and_windows_its_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: "Apple M4\n")
    assert system.cpu()["model"] == "Apple M4"
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: 1 / 0)
    assert system.cpu()["model"] is None
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [3, 1], raising=False)
    monkeypatch.setattr(
        psutil, "cpu_freq", lambda: SimpleNamespace(current=2400, max=0.0), raising=False
    )
    assert system.affinity() == [1, 3]
    assert system.usable_cores() == 2
    assert (system.mhz(), system.cpu()["mhz_max"]) == (2400.0, None)


def test_this_machine_tells_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "passive", "TINYGPT_SECRET": "x"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    facts = environment.collect.__wrapped__()
    assert facts["settings"].items() >= {("KMP_BLOCKTIME", "0"), ("OMP_WAIT_POLICY", "passive")}
    assert "TINYGPT_SECRET" not in facts["settings"]
    assert facts["cpu"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["python"] == platform.python_version()
    assert "diff" not in facts["code"]
    assert json.loads(json.dumps(facts)) == facts
    assert environment.collect() is environment.collect()


def test_versions_are_those_of_the_metadata_and_torch_s_has_its_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = {name: metadata.version(name) for name in environment.PACKAGES}
    assert environment.collect()["packages"] == wanted | {"torch": torch.__version__}
    monkeypatch.setattr(torch, "__version__", "2.14.1+cu130")  # its metadata may say 2.14.1
    assert environment.collect.__wrapped__()["packages"]["torch"] == "2.14.1+cu130"
    assert environment._version("no-such-package") is None


def test_every_direct_dependency_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", wanted)[0] for wanted in project["dependencies"]}
    assert set(environment.PACKAGES) == names


# The code, in a repository of the test's own.


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Call git in a fresh repository with one commit, which is where our code is."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    root = tmp_path / "checkout"
    for folder in ("tinygpt", "runners", "conf"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.py").write_bytes(b"one = 1\n\n")
    monkeypatch.setattr(environment, "ROOT", root)
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_CONFIG_GLOBAL": os.devnull}
    who |= {"GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.check_output(command, text=True, env=os.environ | who).strip()

    git("init", "-q", "-b", "trunk")
    for name, value in (("core.autocrlf", "false"), ("diff.noprefix", "true")):
        git("config", name, value)
    git("add", ".")
    git("commit", "-qm", "one")
    return git


def code() -> dict[str, Any]:
    found: dict[str, Any] = environment.code.__wrapped__()
    return found


def test_a_clean_checkout_takes_one_call(
    checkout: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = environment._git, []
    monkeypatch.setattr(environment, "_git", lambda *a: (calls.append(a[0]), real(*a))[1])
    (environment.ROOT / "conf" / "b.yaml").write_text("changed: true")
    found = code()
    assert found["commit"] == checkout("rev-parse", "HEAD")
    assert (found["branch"], found["dirty"], found["untracked"]) == ("trunk", False, [])
    assert found["diff"] == ""
    assert calls == ["status"]
    (environment.ROOT / "tinygpt" / "a.py").write_text("one = 2\n\n")
    assert code()["dirty"]
    assert calls == ["status", "status", "diff"]


def test_the_diff_is_to_the_byte(checkout: Callable[..., str], tmp_path: Path) -> None:
    changed = environment.ROOT / "runners" / "a.py"
    changed.write_bytes("one = 'é'\r\n\n".encode())
    clean = code()
    assert clean["dirty"]
    patch = tmp_path / "code.diff"
    patch.write_bytes(clean["diff"].encode())
    checkout("apply", "--reverse", "--check", str(patch))
    assert clean["diff"].endswith("\n \n")


def test_a_file_that_git_does_not_know_is_dirt(checkout: Callable[..., str]) -> None:
    before = code()["sha256"]
    (environment.ROOT / "tinygpt" / "new é.py").write_text("two = 2")
    (environment.ROOT / "conf" / "new.py").write_text("two = 2")
    found = code()
    assert (found["dirty"], found["untracked"]) == (True, ["tinygpt/new é.py"])
    assert found["diff"] == ""
    assert found["sha256"] != before


def test_a_moved_file_and_a_detached_head(checkout: Callable[..., str]) -> None:
    checkout("checkout", "-q", "--detach")
    checkout("mv", "tinygpt/a.py", "tinygpt/b.py")
    found = code()
    assert (found["branch"], found["dirty"], found["untracked"]) == (None, True, [])
    assert "b.py" in found["diff"]


def test_a_hook_s_variables_do_not_lead_elsewhere(
    checkout: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = checkout("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    assert code()["commit"] == head


def test_without_git_the_digest_remains(
    checkout: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = code()["sha256"]
    monkeypatch.setenv("PATH", "")
    assert code() == {"version": environment.__version__, "sha256": digest}


# The GPU, by a stub of NVML.


class Nvml(ModuleType):
    """Two cards, known by their numbers; what is not set here raises."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.processes: list[tuple[int, int | None]] = []
        self.starts = 0

    def nvmlInit(self) -> None:
        self.starts += 1

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        names = {"GPU-aaaa-0": 0, "GPU-bbbb-1": 1, "MIG-mmmm-2": 1}
        if name not in names:
            raise self.NVMLError("not found")
        return names[name]

    def nvmlDeviceGetHandleByPciBusId(self, name: str) -> int:
        if name != "00000000:1b:00.0":
            raise self.NVMLError("not found")
        return 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.10"

    def nvmlDeviceGetMaxClockInfo(self, card: int, clock: int) -> int:
        assert clock == self.NVML_CLOCK_SM
        return (1500, 1980)[card]

    def nvmlDeviceGetClockInfo(self, card: int, clock: int) -> int:
        return (345, 1755)[card]

    def nvmlDeviceGetEnforcedPowerLimit(self, card: int) -> int:
        return (300_000, 700_000)[card]

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return (30, 41)[card]

    def nvmlDeviceGetMemoryInfo(self, card: int) -> SimpleNamespace:
        return SimpleNamespace(used=(1, 2)[card])

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: int) -> list[SimpleNamespace]:
        raise self.NVMLError("not supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """The second card is all that torch sees, and its first."""
    stub = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    properties = SimpleNamespace(
        name="H200", total_memory=150_000_000_000, major=9, minor=0, uuid="bbbb-1"
    )
    properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id = 0, 0x1A, 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for cached in (gpu._seen, gpu._nvml):
        cached.cache_clear()
    yield stub
    for cached in (gpu._seen, gpu._nvml):
        cached.cache_clear()


def test_the_card_is_the_one_that_torch_uses(nvml: Nvml) -> None:
    assert gpu.facts() == {
        "name": "H200",
        "memory_bytes": 150_000_000_000,
        "compute_capability": "9.0",
        "uuid": "bbbb-1",
        "cuda": "13.0",
        "driver": "580.10",
        "sm_mhz_max": 1980,
        "power_limit_w": 700.0,
    }
    assert gpu.state() == {
        "sm_mhz": 1755,
        "temperature_c": 41,  # the newer question is not known to this driver
        "memory_used_bytes": 2,
        "other_processes": [],
    }
    assert nvml.starts == 1


@pytest.mark.parametrize(
    ("uuid", "bus", "sm_mhz"),
    [("aaaa-0", 0x1B, 345), ("mmmm-2", 0x1A, 1755), ("cccc-3", 0x1B, 1755), ("cccc-3", 0x1A, None)],
    ids=["its uuid first", "a part of a card", "its address", "rather none than another"],
)
@pytest.mark.usefixtures("nvml")
def test_the_card_is_found_by_its_uuid_or_address(uuid: str, bus: int, sm_mhz: int | None) -> None:
    properties = torch.cuda.get_device_properties(0)
    properties.uuid, properties.pci_bus_id = uuid, bus
    told = gpu.state()
    assert told is not None
    assert told["sm_mhz"] == sm_mhz


@pytest.mark.parametrize("broken", ["no module", "no library", "nothing is supported"])
def test_without_nvml_torch_s_part_remains(
    broken: str, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise nvml.NVMLError(broken)

    if broken == "no module":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif broken == "no library":
        monkeypatch.setattr(nvml, "nvmlInit", fail)
    else:
        for name in dir(Nvml):
            if name.startswith(("nvmlDeviceGet", "nvmlSystem")) and "Handle" not in name:
                monkeypatch.setattr(nvml, name, fail)
    facts, state = gpu.facts(), gpu.state()
    assert facts is not None
    assert state is not None
    assert [name for name, value in facts.items() if value is None] == [
        "driver",
        "sm_mhz_max",
        "power_limit_w",
    ]
    assert facts["name"] == "H200"
    assert set(state.values()) == {None}


def test_a_card_that_cannot_be_had_is_none(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(index: int) -> None:
        raise RuntimeError("CUDA-capable device is busy")

    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    assert (gpu.facts(), gpu.state()) == (None, None)


US = os.getpid()


@pytest.mark.parametrize(
    ("processes", "holding", "others"),
    [
        ([(US, 5)], True, []),
        ([(US, 5), (99, 7), (98, None)], True, [(98, None), (99, 7)]),
        ([(99, 7)], False, [(99, 7)]),
        ([(1234567, 5)], True, []),  # ourselves, under the machine's number
        ([(1234567, 5), (99, 7)], True, None),  # one of them
        ([], True, None),
        ([], False, []),
    ],
)
def test_other_processes_are_those_that_are_not_us(
    processes: list[tuple[int, int | None]],
    holding: bool,
    others: list[tuple[int, int | None]] | None,
    nvml: Nvml,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml.processes = processes
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(holding))
    told = gpu.state()
    assert told is not None
    assert told["other_processes"] == (
        None if others is None else [{"pid": pid, "bytes": size} for pid, size in others]
    )


# What a cell keeps.


def test_a_cell_keeps_the_noise_at_its_start_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(
        {"load_average": [load] * 3, "memory_available_bytes": free, "gpu_state": None}
        for load, free in ((0.5, 900), (2.5, 700))
    )
    monkeypatch.setattr(environment, "state", lambda: next(states))
    monkeypatch.setattr(environment, "code", lambda: {"sha256": "0", "diff": "+é\r\n \n"})
    place = Place(tmp_path / "cell", "id", None, 0, {}, [])

    def kept(name: str) -> Any:
        return json.loads((place.folder / name).read_text(encoding="utf-8"))

    disk.begin(place, "bench", {})
    assert kept("cell.json")["load_average"] == [0.5] * 3
    assert kept("environment.json")["load_average"] == {"start": [0.5] * 3, "end": None}
    assert (place.folder / "code.diff").read_bytes() == "+é\r\n \n".encode()
    monkeypatch.setattr(environment, "collect", lambda: pytest.fail("once is enough"))
    disk.finish(place, CellResult("ok"))
    facts = kept("environment.json")
    assert facts["load_average"] == {"start": [0.5] * 3, "end": [2.5] * 3}
    assert facts["memory_available_bytes"] == {"start": 900, "end": 700}
    assert facts["gpu_state"] == {"start": None, "end": None}
    assert facts["packages"]["torch"] == torch.__version__
    assert kept("cell.json")["load_average"] == [0.5] * 3


def test_each_cell_of_a_process_keeps_its_own_threads(tmp_path: Path) -> None:
    for wanted in (1, 2):
        place = Place(tmp_path / str(wanted), "id", None, 0, {}, [])
        with subject.threads(DeviceConfig(threads=wanted), []):
            disk.begin(place, "bench", {})
        facts = json.loads((place.folder / "environment.json").read_text(encoding="utf-8"))
        assert facts["threads"]["torch"] == wanted
        assert facts["threads"]["interop"] == torch.get_num_interop_threads()


def test_who_ends_another_s_cell_has_not_seen_its_end(tmp_path: Path) -> None:
    place = Place(tmp_path / "cell", "id", None, 0, {}, [])
    disk.begin(place, "bench", {})
    cell = json.loads((place.folder / "cell.json").read_text(encoding="utf-8"))
    write_json(place.folder / "cell.json", cell | {"pid": 1})
    before = (place.folder / "environment.json").read_bytes()
    disk.finish(place, CellResult("interrupted"))
    assert (place.folder / "environment.json").read_bytes() == before
    (place.folder / "environment.json").unlink()  # it died before it was written
    disk.finish(place, CellResult("interrupted"))


# What has changed.

OLD: dict[str, Any] = {
    "host": "one",
    "platform": "Linux-6.1",
    "cpu": {"model": "Xeon", "cores": 2, "usable": 2, "affinity": [0, 1], "quota": None},
    "threads": {"torch": 2},
    "settings": {"OMP_NUM_THREADS": "2"},
    "memory_bytes": 16_000_000_000,
    "memory_limit_bytes": None,
    "gpu": None,
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "regex": "2025.1"},
    "code": {"version": "0.1.0", "commit": "abc1234f", "dirty": False, "sha256": "1111111f"},
    "load_average": {"start": [0.1] * 3, "end": [0.2] * 3},
    "cpu_mhz": {"start": 2000.0, "end": 2000.0},
}
CARD = {"name": "H200", "driver": "580", "cuda": "13.0", "sm_mhz_max": 1980, "uuid": "a"}


def changed(**changes: Any) -> dict[str, Any]:
    """OLD with changes, dicts merged."""
    return OLD | {
        key: OLD[key] | value if isinstance(OLD.get(key), dict) and value else value
        for key, value in changes.items()
    }


DIFFERENCES: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]]]] = [
    (OLD, OLD, []),
    (OLD, {}, []),
    ({}, OLD, []),
    (
        OLD,
        changed(
            host="two",
            load_average={"start": [9.0] * 3},
            cpu_mhz={"start": 3000.0},
            gpu_state={"start": None},
            memory_available_bytes={"start": 5, "end": 6},
        ),
        [],
    ),
    (OLD, changed(packages={"torch": "2.14.1"}), [("versions", "torch 2.13.0 -> 2.14.1")]),
    (
        changed(packages={"torch": "2.13.0+cpu"}),
        changed(packages={"torch": "2.13.0+cu130"}),
        [("versions", "torch 2.13.0+cpu -> 2.13.0+cu130")],
    ),
    (OLD, changed(packages={"torch": "2.13.0+cu130"}), []),  # an older record has no build
    (changed(packages={"torch": "2.13.0+cu130"}), OLD, []),
    (
        OLD,
        changed(packages={"torch": "2.14.1+cpu"}),
        [("versions", "torch 2.13.0 -> 2.14.1+cpu")],
    ),
    (OLD, changed(packages={"torch": None}), [("versions", "torch 2.13.0 -> none")]),
    (OLD, changed(packages={"rich": "15.0"}), []),  # an older record did not ask
    (OLD, changed(python="3.12.1"), [("versions", "python 3.11.7 -> 3.12.1")]),
    (OLD, changed(platform="Linux-6.2"), [("versions", "system Linux-6.1 -> Linux-6.2")]),
    (OLD, changed(cpu={"model": "EPYC 9"}), [("hardware", "cpu model Xeon -> EPYC 9")]),
    (
        OLD,
        changed(cpu={"usable": 4, "affinity": [0, 1, 2, 5]}),
        [("hardware", "usable cores 2 -> 4"), ("hardware", "cpu affinity 0-1 -> 0-2,5")],
    ),
    (OLD, changed(cpu={"quota": 1.5}), [("hardware", "cpu quota none -> 1.5")]),
    (OLD, changed(cpu={"governor": "powersave"}), []),  # as above
    (OLD, changed(memory_bytes=16_000_009_999), []),
    (OLD, changed(memory_bytes=32_100_000_000), [("hardware", "memory 16.0 GB -> 32.1 GB")]),
    (OLD, changed(memory_limit_bytes=4e9), [("hardware", "memory limit none -> 4.0 GB")]),
    (OLD, changed(threads={"torch": 1}), [("hardware", "torch threads 2 -> 1")]),
    (
        OLD,
        OLD | {"settings": {"OMP_WAIT_POLICY": "passive"}},
        [
            ("hardware", "OMP_NUM_THREADS 2 -> unset"),
            ("hardware", "OMP_WAIT_POLICY unset -> passive"),
        ],
    ),
    (OLD, changed(gpu=CARD), [("hardware", "gpu none -> H200")]),
    (changed(gpu=CARD), OLD, [("hardware", "gpu H200 -> none")]),
    (
        changed(gpu=CARD),
        changed(gpu=CARD | {"driver": "590", "sm_mhz_max": 1500, "uuid": "b"}),
        [("versions", "gpu driver 580 -> 590"), ("hardware", "gpu max MHz 1980 -> 1500")],
    ),
    (
        OLD,
        changed(code={"commit": "def5678f", "dirty": True, "sha256": "2222222f"}),
        [("code", "code: commit abc1234 (clean) -> def5678 (dirty)")],
    ),
    (OLD, changed(code={"commit": "def5678f"}), []),  # of a text, the sources being equal
    (
        changed(code={"dirty": True}),
        changed(code={"dirty": True, "sha256": "2222222f"}),
        [
            (
                "code",
                "code: commit abc1234 (dirty), sources 1111111 -> abc1234 (dirty), sources 2222222",
            )
        ],
    ),
    (
        OLD,
        OLD | {"code": {"version": "0.2.0", "sha256": "2222222f"}},
        [("code", "code: commit abc1234 (clean) -> version 0.2.0")],
    ),
    (
        OLD,
        changed(code={"sha256": "2", "dirty": True}, cpu={"cores": 4}, packages={"regex": "9"}),
        [
            ("code", "code: commit abc1234 (clean) -> abc1234 (dirty)"),
            ("versions", "regex 2025.1 -> 9"),
            ("hardware", "physical cores 2 -> 4"),
        ],
    ),
]


@pytest.mark.parametrize(("old", "new", "lines"), DIFFERENCES)
def test_differences_are_told_by_kind(
    old: dict[str, Any], new: dict[str, Any], lines: list[tuple[str, str]]
) -> None:
    assert differences(old, new) == [Difference(kind, line) for kind, line in lines]


def test_two_cells_of_one_process_do_not_differ() -> None:
    facts = environment.collect()
    assert differences(facts | environment.state(), json.loads(json.dumps(facts))) == []
