"""The cluster engine: rollouts by vLLM, training by DeepSpeed, both run by Ray through OpenRLHF.

Only subclasses and wiring live here. What is learned (advantages, selection, weights, losses) is
the same code as on one machine; nothing of OpenRLHF's own losses is used.
"""

TESTED_VERSION = "0.11.2"
"""the version of OpenRLHF that the subclasses are made for"""
