"""Random streams by (seed, purpose, round, client, ...).

Nothing in cflower draws from a global generator. The same keys give the same stream in any process
and order of calls, so a run is reproducible in simulation, in one process and after a resume.
"""

from zlib import crc32

import numpy as np


def seed_sequence(seed: int, *keys: int | str) -> np.random.SeedSequence:
    """Seed sequence of one purpose, e.g. ``seed_sequence(seed, "train", 3, "partition-7")``.

    Strings enter by their CRC-32 (Python's own ``hash`` differs between processes).
    """
    words = [crc32(key.encode()) if isinstance(key, str) else key for key in keys]
    return np.random.SeedSequence([seed, *words])


def generator(seed: int, *keys: int | str) -> np.random.Generator:
    """NumPy generator of one purpose.

    >>> generator(0, "sample", 1).integers(100) == generator(0, "sample", 1).integers(100)
    np.True_
    """
    return np.random.default_rng(seed_sequence(seed, *keys))


def torch_seed(seed: int, *keys: int | str) -> int:
    """A 63-bit seed for ``torch.Generator.manual_seed`` of one purpose."""
    return int(seed_sequence(seed, *keys).generate_state(1, np.uint64)[0] >> 1)
