"""``paw view``: the episodes, curves and world model of a run, in a browser on this machine.

``folders`` finds what a run contains, ``index`` reads its episodes as it grows, ``lists`` summarises, filters
and sorts them, ``measurements`` has its curves, ``store`` answers for all runs, ``app`` serves that with the
files of ``static``. Nothing here imports torch.
"""
