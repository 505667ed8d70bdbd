"""What torch's compiler is told is what it would be told by its own functions."""

import torch

from paribus.nn.compiler import constant


def test_a_function_is_marked_as_torchs_own_decorator_marks_it() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    assert vars(constant(ours)) == vars(torch.compiler.assume_constant_result(theirs)) != {}
