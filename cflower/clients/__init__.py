"""What clients of cflower's own app share: what a message asks, and many trainings at once."""
