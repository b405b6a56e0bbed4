"""The routes of the machine contract, and the launch of machines."""
