"""Test only: OpenRLHF imports flash-attn, which cannot be built without CUDA."""

__version__ = "0"
