"""What an engine does by itself: the loops, each as a tick that can be called by hand."""
