"""Games made by seed: rooms, goals, furnishing, and proof that they can be won."""
