"""A report as one HTML file that needs nothing else: no network, no server, no other file.

data     the curves of a report as JSON, thinned out and packed
color    the colours of a report, on light and on dark
html     everything else as HTML
assets   the style sheet and the scripts, which are embedded unchanged
"""

from auqadmm.report.page.html import page_html, write_page

__all__ = ["page_html", "write_page"]
