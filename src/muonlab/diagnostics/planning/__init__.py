"""Planning: the cheapest schedule for a shape on this machine, and the number of steps while training."""
