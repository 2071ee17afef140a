"""The rows that a store returns about the generations of its database."""

from __future__ import annotations

from typing import NamedTuple


class Generation(NamedTuple):
    """The current generation of the database, and whether this call has begun it.

    Unless it is ready, a restore is being repaired, and no lease is granted.
    """

    generation_no: int
    token_floor: int
    is_new: bool
    is_ready: bool


class RestoredGeneration(NamedTuple):
    """The generation of a restore, and whether this call has begun it or goes on with it."""

    generation_no: int
    token_floor: int
    is_new: bool


class RestoreStep(NamedTuple):
    """What one step of a restore did, and what the whole restore has done so far."""

    looked_at: int
    put_in_doubt: int
    in_doubt_so_far: int
    is_done: bool
