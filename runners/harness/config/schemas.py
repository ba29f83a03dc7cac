"""Every entry point's config, by the name of its file in conf/."""

from runners.harness.config.schema import BenchConfig
from runners.harness.config.text_schema import RaceConfig, SampleConfig, VerifyConfig
from runners.harness.config.tools_schema import (
    CompareConfig,
    DoctorConfig,
    RerunConfig,
    TablesConfig,
)
from runners.harness.config.train_schema import TrainConfig

SCHEMAS: dict[str, type] = {
    "bench": BenchConfig,
    "sample": SampleConfig,
    "verify": VerifyConfig,
    "race": RaceConfig,
    "train": TrainConfig,
    "tables": TablesConfig,
    "rerun": RerunConfig,
    "compare": CompareConfig,
    "doctor": DoctorConfig,
}
