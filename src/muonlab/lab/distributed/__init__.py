"""Training one cell on several ranks: collectives, DDP and FSDP models, sharded tensors."""
