"""The families of federations that battery.py and audit.py run, and the table of what came out."""
