"""Workflows: steps, sleeps, signals, and the journal that replays them."""
