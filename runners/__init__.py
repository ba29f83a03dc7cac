"""The experiments: one entry point a file. What they share is in ``runners.harness``."""
