"""Parts that no author of an environment opens: files, locks, names, checks, replies, HTTP."""
