"""HTML pages: what is on the page of a study, and how it is written."""
