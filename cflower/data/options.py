"""What may be chosen in the run config, apart from the modules that do it: those load slowly."""

PARTITIONERS = ("iid", "dirichlet", "shards", "natural-id")
"""See `cflower.data.partition`."""

SHIFTS = (
    "none",
    "rotation",
    "label-swap",
    "label-permutation",
    "label-subset",
    "label-noise",
    "nested",
    "topic",
)
"""See `cflower.data.shifts`."""

TOKENS = ("words", "characters")
"""See `cflower.data.text`."""

STANDARDISINGS = ("none", "client")
"""See `cflower.data.client_data.prepared`."""
