"""The true distribution of the next observation, for an observer who knows the generator."""
