"""A function that cannot be sent to workers is refused before anything runs, with the name of what is to blame."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from keyscale import KeyedProcessFunction, Secret
from keyscale.jobs.errors import MissingSecretError, NotPicklableError
from keyscale.jobs.graph.picklable import check_picklable
from keyscale.jobs.operators.aggregate import Reduce
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.protocol.restart import FATAL_CODES

if TYPE_CHECKING:
    from keyscale import ProcessContext, Row


class Client:
    def __init__(self) -> None:
        self.name = "orders"
        self.guard = threading.Lock()


class Totals(KeyedProcessFunction):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def process_element(self, row: Row, context: ProcessContext) -> None:
        """Emits nothing."""


def closure(guard: Any) -> Any:
    return lambda left, right: left if guard else right


@pytest.mark.parametrize(
    ("logic", "blamed"),
    [
        (Process(Totals(model=[1, 2], client=Client())), "Totals.client.guard"),
        (Process(Totals(clients={"orders": [1, Client()]})), "Totals.clients['orders'][1].guard"),
        (Process(Totals(rows=(each for each in "ab"))), "Totals.rows"),
        (Reduce(closure(threading.Lock()), None), "closure.<locals>.<lambda>: variable guard"),
        (Reduce(partial(max, key=threading.Lock()), None), "partial(<unlocked _thread.lock object"),
    ],
)
def test_the_part_that_cannot_be_pickled_is_named(logic: Any, blamed: str) -> None:
    with pytest.raises(NotPicklableError) as failure:
        check_picklable(logic, "operator 'totals'")
    said = str(failure.value)
    assert said.startswith(f"operator 'totals' cannot be sent to Python workers because of {blamed}")
    assert ": TypeError: cannot pickle" in said


def test_an_object_that_refuses_to_be_pickled_is_named_with_its_own_message() -> None:
    class Refusing:
        def __getstate__(self) -> Any:
            raise RuntimeError("only one of me")

    with pytest.raises(NotPicklableError, match="RuntimeError: only one of me"):
        check_picklable(Process(Totals(model=Refusing())), "operator 'totals'")


def test_parts_that_refer_to_each_other_are_followed_once() -> None:
    one, two = Totals(guard=threading.Lock()), Totals()
    one.__dict__ = {"two": two, **one.__dict__}
    two.__dict__["one"] = one
    with pytest.raises(NotPicklableError, match=r"of Totals\.guard: TypeError"):
        check_picklable(Process(one), "operator 'totals'")


def test_a_secret_that_is_not_set_keeps_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYSCALE_JOB_SECRET_ORDERS", raising=False)
    with pytest.raises(MissingSecretError, match="ORDERS"):
        check_picklable(Process(Totals(password=Secret("ORDERS"))), "operator 'totals'")


def test_no_restart_can_make_it_picklable() -> None:
    assert NotPicklableError.code in FATAL_CODES
