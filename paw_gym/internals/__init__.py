"""Parts that no author of an environment needs to open: files, locks, names, checks, replies, HTTP."""
