"""Results as pages: curves, tables, figures, and which claims of the paper held."""

from muonlab.report.publish import write_report as write_report
