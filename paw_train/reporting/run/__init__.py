"""The report of one training run: a page, a picture of its curves, a summary in the terminal.

Everything reads files of a run's folder and nothing else, so a report of a run that is still training, or
was killed, can be made at any moment. No torch, no matplotlib, no content from other hosts.
"""
