"""Results as pages: curves, tables, figures, and which claims of the paper held."""
