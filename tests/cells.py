"""What the tests of several commands ask about a cell."""

ARTIFACTS = {
    *("cell.json", "config.yaml", "overrides.yaml", "environment.json"),
    *("timings.json", "generations.jsonl"),
}
"""Files that every cell keeps, and that MLflow has copies of."""
