"""Carriers of wake-ups: PostgreSQL, NATS JetStream, Amazon SQS."""
