"""Services around the environments: the WebShop site, the retriever, the gateway over HTTP.

Planned. A server imports ``paw_gym`` only, never ``paw_train``.
"""
