"""A real federation on one machine, for trying out: processes, certificates, keys and data."""
