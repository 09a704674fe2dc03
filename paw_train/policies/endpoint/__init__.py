"""Models behind an OpenAI-compatible server: what a reply says, what a failure means, what may be spent."""
