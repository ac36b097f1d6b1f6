"""Fixes taken out of the source: a line of a function that ships, and what stands there instead while a check runs.

Source: docs/counterexamples.md, "All of them".
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent, indent
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Patch:
    """Other source for a function.

    Attributes:
        function: which ships.
        text: what stands in it exactly once.
        instead: what is there instead.
    """

    function: Any
    text: str
    instead: str

    @cached_property
    def code(self) -> CodeType:
        """The function with the other text.

        Raises:
            ValueError: the text does not stand there, or more than once.
        """
        shipped: CodeType = self.function.__code__
        source = dedent(inspect.getsource(self.function))
        if source.count(self.text) != 1:
            msg = f"{shipped.co_qualname} has {source.count(self.text)} times {self.text!r}"
            raise ValueError(msg)
        body = indent(source.replace(self.text, self.instead), " ")
        lines = "\n" * (shipped.co_firstlineno - 2)
        code = compile(f"{lines}class _:\n{body}", shipped.co_filename, "exec", dont_inherit=True)
        for name in ("_", shipped.co_name):  # in a class, so that `super` knows one
            code = next(
                each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name
            )
        return code.replace(co_qualname=shipped.co_qualname)


@contextmanager
def applied(patches: Sequence[Patch]) -> Iterator[None]:
    """Functions are what patches make of them until the end of this."""
    shipped = [(each.function, each.function.__code__) for each in patches]
    made = [each.code for each in patches]
    for each, code in zip(patches, made, strict=True):
        each.function.__code__ = code
    try:
        yield
    finally:
        for function, code in shipped:
            function.__code__ = code
