"""Looks: contrast on both pages, distance for colour-blind readers, and the same optimizer everywhere."""

from __future__ import annotations

import itertools

import numpy as np

from muonlab.lab import paper
from muonlab.report.figures.style import OTHERS, curve_styles, ramp

KAPPAS = [f"Muon (κ={kappa})" for kappa in range(1, 11)]
SIZES = [f"B={size}" for size in (64, 128, 256, 512, 1024)]
STEPS = [f"Muon (q={q})" for q in range(11)]
KNOWN = ["SGD-M", *STEPS, "Muon (SVD)", *KAPPAS, *SIZES, "B=7", "B=65536", "NS polynomial", "Ad-hoc polynomial"]
KNOWN += ["r=4", "r=16", "r=216", "sgdm", "muon_q1", "muon_svd", "jordan"]

# Machado, Oliveira & Fernandes 2009, severity 1, on linear RGB
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
APART = 20.0
"""CIE76 distance that the optimizers of the tables keep; 2.3 is just noticeable."""


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(colour, vision):
    seen = np.clip(np.array(VISIONS[vision]) @ linear(colour), 0, 1)
    t = XYZ @ seen / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_distance(colours, vision):
    return min(np.linalg.norm(lab(a, vision) - lab(b, vision)) for a, b in itertools.combinations(colours, 2))


def test_every_colour_stands_out_three_to_one_on_both_pages():
    for page in ["#ffffff", "#14171c"]:
        ramps = [ramp(place) for place in np.linspace(0, 1, 61)]
        for colour in {style_of.colour for style_of in curve_styles(KNOWN).values()} | set(OTHERS) | set(ramps):
            assert contrast(colour, page) >= 3.0, colour


def test_optimizers_of_the_tables_are_told_apart_in_every_vision():
    for vision in VISIONS:
        found = curve_styles(paper.OPTIMIZERS)
        assert least_distance([found[name].colour for name in paper.OPTIMIZERS], vision) >= APART


def test_a_red_and_green_palette_would_fail_that_test():
    red_green = ["#d62728", "#7f7f1f", "#1f77b4", "#9467bd", "#2ca02c"]
    assert least_distance(red_green, "normal") >= APART
    assert min(least_distance(red_green, vision) for vision in ("protanopia", "deuteranopia")) < APART


def test_degrees_and_batch_sizes_run_in_order_from_blue_to_yellow():
    for vision in ["normal", "protanopia", "deuteranopia"]:
        for labels in (KAPPAS, SIZES):
            yellow = [lab(style_of.colour, vision)[2] for style_of in curve_styles(labels).values()]
            assert yellow == sorted(yellow)


def test_optimizers_look_the_same_in_every_list():
    alone = {name: curve_styles([name])[name] for name in ["SGD-M", "Muon (SVD)", *STEPS]}
    for extra in (KNOWN, ["a", "b", *STEPS, "SGD-M", "Muon (SVD)"], ["Muon (q=3), r=16", *alone]):
        found = curve_styles(extra)
        assert all(found[name] == style_of for name, style_of in alone.items() if name in extra)


def test_markers_differ_within_a_figure():
    for labels in [
        ["SGD-M", "Muon (SVD)", *STEPS],
        KAPPAS,
        SIZES,
        ["NS polynomial", "Ad-hoc polynomial"],
        list("abcdefghijklmnopqrstu"),
        [*KAPPAS[:3], *SIZES, *STEPS[:4], "SGD-M"],
        ["Muon (q=3), r=16", "Muon (q=3), r=32", "Muon (q=3)", "?"],
    ]:
        markers = [style_of.marker for style_of in curve_styles(labels).values()]
        assert len(set(markers)) == len(labels)


def test_parts_of_one_optimizer_share_its_colour():
    found = curve_styles(["Muon (q=3), r=16", "Muon (q=3), r=32", "SGD-M, r=16"])
    assert found["Muon (q=3), r=16"] == curve_styles(["Muon (q=3)"])["Muon (q=3)"]
    assert found["Muon (q=3), r=16"].colour == found["Muon (q=3), r=32"].colour != found["SGD-M, r=16"].colour
