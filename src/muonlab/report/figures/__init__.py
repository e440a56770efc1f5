"""Figures of a page, one module for each kind."""

from muonlab.report.figures.bounds import bounds_figure as bounds_figure
from muonlab.report.figures.cost import cost_figure as cost_figure
from muonlab.report.figures.frontier import frontier_figure as frontier_figure
from muonlab.report.figures.layers import layers_figure as layers_figure
from muonlab.report.figures.optima import optima_figure as optima_figure
from muonlab.report.figures.polynomials import response_figure as response_figure
from muonlab.report.figures.polynomials import tau_phi_figure as tau_phi_figure
from muonlab.report.figures.rank import rank_figure as rank_figure
from muonlab.report.figures.sweep import sweep_figure as sweep_figure
from muonlab.report.figures.training import training_figure as training_figure
