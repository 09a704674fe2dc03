"""Services around the environments: the WebShop site, the retriever.

A server imports ``paw_gym`` only, never ``paw_train``; ``paw serve`` starts them. What they share (who
may come in, logs, metrics, starting and stopping) is in ``env_servers.service``.
"""
