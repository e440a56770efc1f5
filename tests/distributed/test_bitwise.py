"""N ranks give the parameters and momenta of one process to the bit: every layout, kind of shard and option."""

from __future__ import annotations

import torch

from tests.distributed.problems import Matrix, alone, differing, weights
from tests.distributed.registry import each_size


@each_size("bitwise")
def test_weights_and_momenta_are_those_of_one_process_bit_by_bit(ranks, size, cases):
    for case in cases:
        ranks(size).values(case)


def test_the_comparison_notices_one_flipped_bit():
    whole = {"W": weights([Matrix((5, 7))])[0]}
    changed = whole["W"].clone()
    changed.view(torch.int32)[3, 2] ^= 1
    assert differing(whole, {"W": whole["W"].clone()}) == []
    assert len(differing(whole, {"W": changed})) == 1
    assert "1 of 35 entries" in differing(whole, {"W": changed})[0]


def test_the_comparison_tells_zeros_of_both_signs_apart_and_takes_nan_for_itself():
    zero, nan = torch.zeros(3), torch.full((3,), torch.nan)
    assert differing({"W": zero}, {"W": -zero})
    assert differing({"W": nan}, {"W": nan.clone()}) == []


def test_the_comparison_notices_a_missing_tensor_and_another_shape():
    W = torch.ones(2, 3)
    assert differing({"W": W, "M": W}, {"W": W}) == ["M is only on one side"]
    assert differing({"W": W}, {"W": W.mT.contiguous()})


def test_a_training_names_weights_and_momenta():
    from muonlab.optim import Muon

    training = alone([Matrix((3, 4), name="W")], Muon)
    training.step(2)
    assert set(training.tensors()) == {"W", "momentum_buffer of W"}
