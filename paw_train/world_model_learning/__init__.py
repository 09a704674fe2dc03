"""World-model learning before policy RL, in three stages: RWML (arXiv 2602.05842) and WM-SFT.

First the start policy collects transitions; then it learns to predict their next
observations, by GRPO with a similarity reward (``rwml``) or by cross-entropy (``sft``); then ordinary policy
RL starts from those weights. ``stages`` is what a training run calls; everything lies in the run's folder.
"""
