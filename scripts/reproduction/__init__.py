"""The experiments of the seeds; `scripts/reproduce.py` runs them by name."""
