"""What needs a finished run: newcomers are assigned, models are exported."""
