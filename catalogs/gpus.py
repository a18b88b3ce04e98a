"""GPU names: canonical ids and an alias table in which every spelling is either known or refused.

A name is matched whole (ignoring case), never by prefix: ``A100`` is not ``A100-80GB-SXM``. Some spellings mean one GPU
only in a given feed (SkyPilot's ``A100`` is the 40 GB one): these aliases carry the feed's name as ``scope``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from catalogs.errors import CoralError, UnknownNameError

ANY_SCOPE = "any"
# Vendors' feeds have named a whole GPU by its maker only; such a name says nothing.
_MAKERS = frozenset({"nvidia", "amd", "gpu", "intel"})


@dataclass(frozen=True, slots=True)
class GpuNames:
    """Canonical ids, aliases by (scope, spelling), names that are known but not carried, and instance types' GPUs."""

    canonical: frozenset[str]
    aliases: Mapping[tuple[str, str], str]
    not_carried: Mapping[tuple[str, str], str] = field(default_factory=dict)
    by_instance_type: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        canonical: Iterable[str],
        aliases: Iterable[tuple[str, str, str | None, str]],
        by_instance_type: Mapping[str, str] | None = None,
    ) -> GpuNames:
        """From (scope, alias, gpu or None, note) rows. The three sets must be disjoint and aliases must point at
        canonical ids; anything else raises ValueError (a fault of the shipped table, not of a user)."""
        known = frozenset(canonical)
        lower = {gpu.lower() for gpu in known}
        good: dict[tuple[str, str], str] = {}
        refused: dict[tuple[str, str], str] = {}
        for scope, alias, gpu, note in aliases:
            key = (scope, alias.lower())
            if key in good or key in refused or (alias.lower() in lower and alias.lower() != (gpu or "").lower()):
                raise ValueError(f"GPU alias {alias!r} ({scope}) is there twice or is itself a canonical id")
            if gpu is None:
                refused[key] = note
            elif gpu in known:
                good[key] = gpu
            else:
                raise ValueError(f"GPU alias {alias!r} points at {gpu!r}, which is not a canonical id")
        return cls(known, good, refused, by_instance_type or {})

    def encode(self, name: str, *, scope: str = ANY_SCOPE, instance_type: str = "") -> str:
        """The canonical id of ``name``. A name that is only a maker's ("NVIDIA") is resolved by ``instance_type`` or
        refused; an unknown name raises UnknownNameError with close matches."""
        key = name.strip().lower()
        if key in _MAKERS:
            if gpu := self.by_instance_type.get(instance_type):
                return gpu
            raise CoralError(f"{name!r} names a maker, not a GPU", remedy="write the GPU id, e.g. H200-SXM")
        # Where a feed calls two cards alike, the machine's name tells which.
        if scope != ANY_SCOPE and (gpu := self.aliases.get((scope, instance_type.strip().lower()))):
            return gpu
        for gpu in self.canonical:
            if gpu.lower() == key:
                return gpu
        for where in (scope, ANY_SCOPE):
            if gpu := self.aliases.get((where, key)):
                return gpu
            if (where, key) in self.not_carried:
                reason = self.not_carried[where, key]
                raise CoralError(f"GPU {name!r} is known but not in the catalog ({reason})", remedy="leave the row out")
        raise UnknownNameError("GPU", name, self.canonical)
