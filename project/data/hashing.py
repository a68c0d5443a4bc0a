"""Random integers that are pure functions of integers, the same on every device and torch version.

A stateful generator cannot be wound to the middle of an epoch and depends on how many workers and
processes draw from it. A counter-based hash of (seed, epoch, index) has no such state.
"""

import os
from typing import TypeVar

from torch import Tensor

Word = TypeVar("Word", int, Tensor)

_MASK = 0xFFFFFFFF


def scramble(word: Word) -> Word:
    """Hash 32-bit words, Python's or an int64 tensor's; a bijection (hash-prospector, lowbias32).

    On int64 tensors the products wrap around, which leaves their low 32 bits right.
    """
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK
    return word ^ (word >> 16)


def join(key: int, word: Word) -> Word:
    """Hash ``word`` in the stream named by ``key``, to 32 bits."""
    # The golden ratio, because scramble(0) is 0.
    return scramble(((word + 0x9E3779B9) & _MASK) ^ key)


def mix(*words: int) -> int:
    """Hash any number of integers to one of 32 bits; their order matters."""
    key = 0
    for word in words:
        key = join(key, word)
    return key


def run_seed() -> int:
    """Return the seed of the run: what ``seed_everything`` was given, else 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))
