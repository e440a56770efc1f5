"""Certificates: what the convergence proof says about a matrix, a network, an optimizer or a file."""
