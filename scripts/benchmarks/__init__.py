"""What `bench` times: the server's rounds and decisions."""
