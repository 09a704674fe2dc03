"""The engine: the original's text and rules, about a thousand times faster."""
