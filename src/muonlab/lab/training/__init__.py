"""Training one cell: the loop, its optimizer and evaluation, and its checkpoints."""
