import numpy as np
import pytest
import torch

from muonlab.lab.data.batches import Images, Tokens, augment, order
from muonlab.lab.data.registry import AUGMENTATIONS

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@pytest.fixture
def pixels():
    return torch.randint(0, 256, (40, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def images(pixels):
    return Images.from_arrays(pixels.numpy(), (torch.arange(40) % 10).numpy(), MEAN, STD, 255)


def naive(pixels, brightest=255):
    m, s = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / brightest - m) / s


@pytest.mark.parametrize("brightest", [255, 16])
def test_batches_are_normalised_as_the_formula_says(pixels, brightest):
    index = torch.tensor([5, 0, 39, 5])
    x, y = Images.from_arrays(pixels.numpy(), (torch.arange(40) % 10).numpy(), MEAN, STD, brightest).batch(index)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert y.tolist() == [5, 0, 9, 5]
    torch.testing.assert_close(x, naive(pixels[index], brightest), atol=1e-6 * 255 / brightest, rtol=1e-6)


def test_moved_examples_give_batches_on_their_device(images):
    moved = images.to("meta")
    x, y = moved.batch(torch.arange(4))
    assert moved.device.type == x.device.type == y.device.type == "meta"
    assert images.device.type == "cpu"
    assert images.to("cpu").pixels.data_ptr() == images.pixels.data_ptr()
    assert Tokens(torch.zeros(20, dtype=torch.int16), 3).to("meta").batch(torch.arange(4))[1].device.type == "meta"


def test_targets_are_the_tokens_that_follow():
    for count, blocks in ((13, 3), (12, 2), (14, 3), (16, 3), (17, 4), (5, 1)):
        tokens = Tokens.from_array(np.arange(65_500, 65_500 + count, dtype=np.uint16), 4)
        assert len(tokens) == blocks == (count - 1) // 4
        x, y = tokens.batch(torch.arange(blocks))
        assert x.dtype == y.dtype == torch.int64
        assert x.flatten().tolist() == list(range(65_500, 65_500 + 4 * blocks))
        assert torch.equal(y, x + 1)
        assert torch.equal(tokens.batch(torch.tensor([blocks - 1]))[0], x[-1:])


def test_the_order_is_a_permutation_of_seed_epoch_and_length_alone():
    torch.manual_seed(1)
    a = order(3, 2, 1000)
    torch.manual_seed(2)
    assert torch.equal(a, order(3, 2, 1000))
    assert torch.equal(a.sort().values, torch.arange(1000))
    seen = {tuple(order(seed, epoch, 50).tolist()) for seed in range(12) for epoch in range(12)}
    assert len(seen) == 144


def test_drawing_an_order_leaves_torch_s_own_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    order(0, 0, 10)
    augment(torch.zeros(2, 1, 5, 5), "flip+translate", seed=0, epoch=0, step=0)
    assert torch.equal(before, torch.get_rng_state())


def test_flips_mirror_about_half_of_the_images(images):
    x, _ = images.batch(torch.arange(40).repeat(10))
    y = augment(x, "flip", seed=0, epoch=0, step=0)
    same = (y == x).flatten(1).all(1)
    mirrored = (y == x.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_translations_are_crops_of_the_reflected_image(images):
    x, _ = images.batch(torch.arange(40).repeat(10))
    y = augment(x, "flip+translate", seed=0, epoch=0, step=0)
    found = torch.zeros(len(x), dtype=torch.int64)
    h, w = x.shape[2:]
    seen = set()
    for flip in (False, True):
        # the naive twin: flip, pad by reflection, cut out
        padded = torch.nn.functional.pad(x.flip(3) if flip else x, (2, 2, 2, 2), mode="reflect")
        for dy in range(5):
            for dx in range(5):
                equal = (padded[:, :, dy : dy + h, dx : dx + w] == y).flatten(1).all(1)
                found += equal
                if equal.any():
                    seen.add((flip, dy, dx))
    assert torch.equal(found, torch.ones_like(found))
    assert len(seen) == 50


@pytest.mark.parametrize("kind", [kind for kind in AUGMENTATIONS if kind != "none"])
def test_augmentation_depends_on_seed_epoch_and_step_alone(images, kind):
    x, _ = images.batch(torch.arange(40))
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (11, 1, 0), (1, 11, 0)]
    outputs = [augment(x, kind, seed=s, epoch=e, step=t) for s, e, t in keys]
    again = [augment(x, kind, seed=s, epoch=e, step=t) for s, e, t in keys]
    assert all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))
    assert len({tuple(o.flatten().tolist()) for o in outputs}) == len(keys)


def test_what_cannot_be_augmented_is_refused():
    with pytest.raises(ValueError, match="kind must be one of 'none', 'flip', 'flip\\+translate', got 'crop'"):
        augment(torch.zeros(1, 1, 8, 8), "crop", seed=0, epoch=0, step=0)
    with pytest.raises(ValueError, match=r"x must be images .* got \(2, 3\): use kind='none'"):
        augment(torch.zeros(2, 3), "flip", seed=0, epoch=0, step=0)
    with pytest.raises(ValueError, match="larger than 2 pixels to be moved, got 2×8"):
        augment(torch.zeros(1, 1, 2, 8), "flip+translate", seed=0, epoch=0, step=0)
    for bad in ((-1, 0, 3), (0, -1, 3), (0, 0, -1)):
        with pytest.raises(ValueError, match="must be at least 0"):
            order(*bad)
    with pytest.raises(ValueError, match="step must be at least 0"):
        augment(torch.zeros(1, 1, 8, 8), "flip", seed=0, epoch=0, step=-1)
