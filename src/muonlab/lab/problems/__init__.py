"""Problems whose constants are known, and the inequalities of the proofs checked on them."""
