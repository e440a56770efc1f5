"""The command line: what can be typed, and how each command is answered."""
