"""What operators and programs manage: queues, schedules, keys, workflows, retries."""
