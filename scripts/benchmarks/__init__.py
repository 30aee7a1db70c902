"""What bench.py times: the server, the clients and a whole `flwr run`."""
