"""The peers, one file each: durable engines a Python user would pick instead, with their best sensible settings."""
