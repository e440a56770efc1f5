"""N ranks give the parameters and momenta of one process to the bit: every layout, kind of shard and option."""

from __future__ import annotations

import torch

from tests.distributed.problems import Matrix, alone, differing, weights
from tests.distributed.registry import each_size


@each_size("bitwise")
def test_weights_and_momenta_are_those_of_one_process_bit_by_bit(ranks, size, cases):
    for case in cases:
        ranks(size).values(case)


def test_the_comparison_notices_one_flipped_bit_the_sign_of_zero_another_shape_and_a_missing_tensor():
    whole = weights([Matrix((5, 7))])[0]
    changed, zero, nan = whole.clone(), torch.zeros(3), torch.full((3,), torch.nan)
    changed.view(torch.int32)[3, 2] ^= 1
    assert differing({"W": whole}, {"W": whole.clone()}) == differing({"W": nan}, {"W": nan.clone()}) == []
    [message] = differing({"W": whole}, {"W": changed})
    assert "1 of 35 entries" in message
    assert differing({"W": zero}, {"W": -zero})
    assert differing({"W": whole}, {"W": whole.mT.contiguous()})
    assert differing({"W": whole, "M": whole}, {"W": whole}) == ["M is only on one side"]


def test_a_training_names_weights_and_momenta():
    from muonlab.optim import Muon

    training = alone([Matrix((3, 4), name="W")], Muon)
    training.step(2)
    assert set(training.tensors()) == {"W", "momentum_buffer of W"}
