"""The explorer of the theory: an interactive page, and its data."""
