"""The terms of kind python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from leasehold.domain.gateway_terms import GatewayTerms
from leasehold.domain.terms import matching

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
FunctionPath: TypeAlias = Annotated[
    str,
    matching(rf"{_NAMES}:{_NAMES}", "must be an import path such as package.module:function"),
    Field(max_length=255),
]


class PythonTerms(GatewayTerms):
    """A gateway that is an async function, given by its import path."""

    placeholders: ClassVar[Mapping[str, object]] = {"function": "placeholder:placeholder"}
    calls_outside: ClassVar[bool] = False
    lookup_advice: ClassVar[str] = "set lookup"

    kind: Literal["python"] = "python"
    function: FunctionPath
    lookup: FunctionPath | None = None

    @property
    def can_look_up(self) -> bool:
        """Whether the gateway can look up the outcome of a key."""
        return self.lookup is not None

    @property
    def destination(self) -> str:
        """The import path of the function."""
        return self.function
