"""``paw view``: the episodes, curves and world model of a run, in a browser on this machine.

``folders`` finds what a run contains, ``index`` reads its summaries as it grows, ``queries``
answers filters from them, ``conversation`` and ``measurements`` shape what a page shows, ``app`` serves it
with the files of ``static``. Nothing here imports torch.
"""
