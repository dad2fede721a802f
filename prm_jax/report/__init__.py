"""Reports: one self-contained HTML page for each run.

The last stage of the pipeline: `write_report` reads what a run left in its
workdir and writes `report.html` beside it, a file that can be mailed, printed
or opened on a phone without a network.
"""

from prm_jax.report.page import write_report

__all__ = ['write_report']
