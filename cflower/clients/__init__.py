"""Common parts of the clients of cflower's own app: instructions, methods, stacked trainings."""
