"""A policy that vLLM runs in this process."""
