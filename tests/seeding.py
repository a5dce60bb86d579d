"""Seeds of the tests: the same for one test wherever it runs, others where
``GLASSFORMER_TEST_SEED`` says so."""

from __future__ import annotations

import os
import random
import zlib

import numpy as np
import torch

RUN = os.environ.get("GLASSFORMER_TEST_SEED", "0")


def seed_from(name):
    """The seed of a test or a fixture by its name, in this run."""
    return zlib.crc32(f"{RUN} {name}".encode())


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generator_from(seed):
    """A generator of random numbers that begins at a seed."""
    return torch.Generator().manual_seed(seed)
