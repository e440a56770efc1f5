"""The runner: plans the cells of a study, runs them, stores and reads their results."""
