"""What is shown of runs: in the terminal, as the report of one run, and as a comparison of many."""
