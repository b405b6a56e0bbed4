"""Submissions: checked, given their ids, written in groups."""
