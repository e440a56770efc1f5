"""Recording: certificates of every matrix while a model trains, without changing a bit of the training."""
