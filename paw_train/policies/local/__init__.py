"""A policy in this process: any Hugging Face causal language model, with batched decoding."""
