"""The rules of datasets. Pure."""
