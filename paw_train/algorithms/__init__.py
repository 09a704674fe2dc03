"""From rewards to advantages: the estimators, and what they need of an update's transitions.

The estimators are pure functions; ``experience`` applies them to an update, ``critic`` is PPO's.
"""
