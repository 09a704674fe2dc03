"""Search QA: answer questions with a search engine."""
