"""What an observer who knows the generator would expect: the true distribution of the next observation."""
