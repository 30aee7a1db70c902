"""The experiments of the seeds; `scripts/run.py` runs them by name."""
