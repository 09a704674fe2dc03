"""Imported where programs are forked: what every run of the recipe ``smoke`` reads is read once."""

from transformers import conversion_mapping

from paw_gym.envs.alfworld.env import procedural_tasks

for split in ("train", "valid_seen", "valid_unseen"):
    tasks = procedural_tasks(split, "put", None, 24)
    for task_id in tasks.ids:
        tasks[task_id]  # makes and compiles the game
conversion_mapping.get_checkpoint_conversion_mapping("llama")
