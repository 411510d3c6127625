"""Many stored keys, as objects and, where they can be, as one block of memory."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt


class StoredKeys(list[bytes]):
    """A list of stored keys that nobody changes; `matrix` has a key a row, or is None if they differ in length.

    To go through the objects of a large batch takes many times as long as to go through the matrix.
    """

    __slots__ = ("matrix",)

    def __init__(self, keys: Iterable[bytes], matrix: npt.NDArray[np.uint8] | None = None) -> None:
        super().__init__(keys)
        self.matrix = matrix

    @classmethod
    def of_rows(cls, matrix: npt.NDArray[np.uint8]) -> StoredKeys:
        """The rows of a contiguous matrix with a column at least."""
        return cls(matrix.view(f"V{matrix.shape[1]}").ravel().tolist(), matrix)

    def where(self, kept: Sequence[bool]) -> StoredKeys:
        """Those for which `kept` is true."""
        return StoredKeys(compress(self, kept), None if self.matrix is None else self.matrix.compress(kept, axis=0))
