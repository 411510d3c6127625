"""Places for long requests, limited in total and per user."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyscale.units import counted

from ..errors import TooManyInFlightError

if TYPE_CHECKING:
    from collections.abc import Iterator


class InFlight:
    """Places for long requests of one kind.

    A single user cannot take all places.

    Args:
        noun: The word for such a request.
        plural: The plural of the word.
        places: Number of places.
        of_user_max: Maximum number of places per user.
    """

    def __init__(self, noun: str, plural: str, places: int, of_user_max: int) -> None:
        self._noun = noun
        self._plural = plural
        self._places = places
        self._of_user_max = of_user_max
        self._lock = threading.Lock()
        self._of_users: Counter[str] = Counter()

    @contextmanager
    def place(self, user_id: str) -> Iterator[None]:
        """Holds a place for a user.

        Raises:
            TooManyInFlightError: All places are taken, or all places of this user.
        """
        with self._lock:
            if self._of_users.total() >= self._places:
                raise TooManyInFlightError(f"the limit is {self._shown(self._places)} at once")
            if self._of_users[user_id] >= self._of_user_max:
                raise TooManyInFlightError(f"the limit is {self._shown(self._of_user_max)} of a user at once")
            self._of_users[user_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_users[user_id] -= 1
                if not self._of_users[user_id]:
                    del self._of_users[user_id]

    def _shown(self, number: int) -> str:
        return counted(number, self._noun, self._plural)
