"""What shows and judges a training run: the HTML report, a picture of its curves, a summary.

Everything reads files of a run's folder and nothing else, so a report of a run that is still going, or
was killed, can be made at any moment. No torch, no matplotlib, no content from other hosts.
"""

from paw_train.reporting.run.page import write_report
from paw_train.reporting.run.picture import write_curves_svg
from paw_train.reporting.run.summary import summary_lines, summary_table

__all__ = ["summary_lines", "summary_table", "write_curves_svg", "write_report"]
