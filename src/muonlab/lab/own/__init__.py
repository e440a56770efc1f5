"""A user's own parts of a study: models, data, optimizers and losses as plain objects, identified by their content."""
