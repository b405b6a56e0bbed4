"""The signed URLs of the machine contract."""
