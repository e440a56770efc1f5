"""The command line: its commands, their answers, and how these are printed."""
