"""Where word order enters."""

import pytest
import torch

from paribus.nn.position import AbsolutePosition, AlibiPosition, Position, RelativeBias


def test_a_position_that_overrides_nothing_changes_nothing() -> None:
    x, q, k = torch.randn(1, 3, 4), torch.randn(1, 2, 3, 2), torch.randn(1, 2, 3, 2)
    position = Position()
    assert position.embed(x) is x and position.rotate(q, k) == (q, k) and position.bias(0, 3) is None


def test_absolute_positions_add_a_vector_a_place_and_refuse_more_places() -> None:
    position = AbsolutePosition(4, 8)
    torch.nn.init.normal_(position.places)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(position.embed(x) - x, position.places[:3].expand(2, -1, -1))
    assert position.embed(torch.randn(1, 4, 8)).shape == (1, 4, 8)
    with pytest.raises(ValueError, match="5 tokens, but positions for 4"):
        position.embed(torch.randn(1, 5, 8))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_relative_bias_is_the_entry_of_the_clipped_distance(length: int) -> None:
    position = RelativeBias(layers=2, heads=3, max_distance=4, sided=False)
    torch.nn.init.normal_(position.table)
    for layer in range(2):
        bias = position.bias(layer, length)
        for head in range(3):
            for query in range(length):
                for key in range(length):
                    entry = position.table[layer, head, max(-4, min(4, key - query)) + 4]
                    assert bias[head, query, key] == entry


def test_a_sided_start_has_heads_that_look_forward_and_heads_that_look_back() -> None:
    position = RelativeBias(layers=1, heads=2, max_distance=8, sided=True)
    with torch.no_grad():
        position.start()
    forward, back = position.bias(0, 9)[:, 4]
    assert forward.argmax() != 4 and back.argmax() != 4
    assert (forward.argmax() < 4) != (back.argmax() < 4)


def test_alibi_slopes_are_the_papers_and_fall_off_on_both_sides() -> None:
    position = AlibiPosition(8)
    assert position.slopes == tuple(2.0**-n for n in range(1, 9))
    bias = position.bias(0, 5)
    assert bias[0, 1].tolist() == [-0.5, 0.0, -0.5, -1.0, -1.5]
    assert torch.equal(bias, bias.mT) and not list(position.parameters())
