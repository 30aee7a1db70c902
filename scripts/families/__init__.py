"""Families of federations whose right clusters are known, and what is measured on them."""
