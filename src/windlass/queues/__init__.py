"""Carriers of wake-ups: PostgreSQL, NATS JetStream, Amazon SQS. Each has two sides: one that sends, for the engine, and
one that receives, for workers, which knows neither the engine nor the database."""
