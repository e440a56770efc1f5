"""Claims of the paper: the ledger, the rules that decide them, and their judgement on results."""
