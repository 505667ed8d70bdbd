"""Batches that are made ahead."""

import threading

from paribus.train.tensors import ahead


def test_the_next_is_made_while_one_is_used_and_all_come_in_order() -> None:
    begun = [threading.Event() for _ in range(4)]

    def make(number: int) -> int:
        begun[number].set()
        return number

    for number, made in enumerate(ahead(range(4), make)):
        assert made == number
        assert number == 3 or begun[number + 1].wait(10)
        assert number > 1 or not begun[number + 2].is_set()  # one ahead, not all


def test_nothing_comes_of_nothing() -> None:
    assert list(ahead([], str)) == []
