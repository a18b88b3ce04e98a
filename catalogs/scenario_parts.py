"""What the sections of a scenario file are made of: a base that refuses unknown keys, numbers within bounds, names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

# The type of the fault of a number outside its bounds.
OUT_OF_BOUNDS = "out_of_bounds"

Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(strict=True, min_length=1)]


@dataclass(frozen=True)
class Within:
    """Marks a number that must lie from ``low`` to ``high``; ``or_zero``: or be exactly 0. Texts, true and NaN are refused.

    Every number of a scenario is marked so. The bounds are wider than anything real, and keep what is computed from it
    (squares, ratios, sums over models) far from overflow and from meaningless results.
    """

    low: float
    high: float
    or_zero: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Strictly ``source`` (float or int), then the bounds."""
        strict: core_schema.CoreSchema = (
            core_schema.int_schema(strict=True)
            if source is int
            else core_schema.float_schema(strict=True, allow_inf_nan=False)
        )
        return core_schema.no_info_after_validator_function(self.check, strict)

    def check(self, value: float) -> float:
        """The value itself, or a fault with the bounds."""
        if self.low <= value <= self.high or (self.or_zero and value == 0):
            return value
        bounds = {"low": self.low, "high": self.high, "or_zero": self.or_zero}
        raise PydanticCustomError(OUT_OF_BOUNDS, "from {low} to {high}", bounds)


class Section(BaseModel):
    """Base of every part: no unknown keys, no change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
