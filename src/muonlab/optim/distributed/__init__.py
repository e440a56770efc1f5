"""Optimizers on several processes: who holds what, who orthogonalizes it, and what they send each other."""
