"""Training one cell: the loop, its optimizer, its evaluation and its checkpoints."""
